"""Sparse MoE block cannot be captured: one-argument torch.where gives a data-dependent shape.

Source: huggingface/transformers#30793.
Cause: nonzero/where output shape depends on routing values.
Fix: dense/batched routing or grouped_mm; or capture_dynamic_output_shape_ops=True.

Observed:
- torch 2.13.0+cpu: graphs=0; recompiles=0; break only in the log (counter empty): Failed to handle graph
  break gracefully. Skipping the
  function and falling back to eager. Graph break encountered: Dynam
- torch 2.13.0+cpu: fullgraph=True: captured
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.r = nn.Linear(8, 2)
        s.e = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(s, x):
        w = F.one_hot(s.r(x).argmax(-1), 2) * s.r(x).softmax(-1)
        y = torch.zeros_like(x)
        for k in range(2):
            tok = torch.where(w[:, k] > 0)[0]
            y = y.index_add(0, tok, s.e[k](x[tok]) * w[tok, k, None])
        return x + y


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
    "cause": "dynamic_output_shape",
    "line": "tok = torch.where(w[:, k] > 0)[0]",
    "fix": "dense/batched routing or grouped_mm; or capture_dynamic_output_shape_ops=True",
    "also": [("perf", "graph_runs_eager")],
}
