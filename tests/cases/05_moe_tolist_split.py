"""MoE for-loop experts break at num_tokens_per_expert.tolist().

Source: PrimeIntellect-ai/prime-rl#996, meta-pytorch/torchtune#2771. Cause: per-expert token counts moved to
Python ints with .tolist() and used as split sizes. Fix: use grouped_mm / offsets kept on device, or compile
sub-modules around the expert loop (capture_scalar_outputs alone fails at the split).

Observed:
- torch 2.13.0+cpu: graphs=5; recompiles=2; breaks=Dynamic shape operator x1; Data dependent operator x1;
  first reason: ___stack2[1] == 4
- torch 2.13.0+cpu: fullgraph=True: GuardOnDataDependentSymNode
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.r = nn.Linear(8, 3)
        s.e = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(s, x):
        idx = s.r(x).argmax(-1)
        order = idx.argsort()
        counts = torch.bincount(idx, minlength=3)
        parts = torch.split(x[order], counts.tolist())
        y = torch.cat([e(p) for e, p in zip(s.e, parts, strict=True)])
        return x + torch.zeros_like(x).index_copy(0, order, y)


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
    return Model(), [dict(x=torch.randn(10, 8)) for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "tensor.tolist",
    "line": "counts.tolist()",
    "fix": "use grouped_mm / offsets kept on device, or compile sub-modules around the expert loop (capture_scalar_outputs alone fails at the split)",
    "also": [("graph_break", "dynamic_output_shape"), ("graph_break", "data_dependent_branch")],
}
