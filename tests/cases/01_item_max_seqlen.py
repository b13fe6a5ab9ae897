"""Varlen/packed attention breaks the graph at the max-length read in every layer.

Source: huggingface/transformers#37206 (fixes #35588). Cause: max segment length taken from a tensor with
.max().item() inside the block. Fix: compute max_seqlen once outside the blocks (host side) and pass it, or
set torch._dynamo.config.capture_scalar_outputs=True.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=0; breaks=Unsupported Tensor.item() call with
  capture_scalar_outputs=False x1
- torch 2.13.0+cpu: fullgraph=True: captured (1 graph, fwd+bwd aot_eager and inductor)
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x, cu):
        m = int((cu[1:] - cu[:-1]).max().item())
        return x + s.p(x) / m


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block(i) for i in range(n))

    def forward(s, x, **kw):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    return Model(), [dict(x=torch.randn(12, 8), cu=torch.tensor([0, 5, 12])) for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "tensor.item",
    "line": "m = int((cu[1:] - cu[:-1]).max().item())",
    "fix": "compute max_seqlen once outside the blocks (host side) and pass it, or set torch._dynamo.config.capture_scalar_outputs=True",
}
