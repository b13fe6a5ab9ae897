"""Clean block, fixed shapes: nothing to report.

Source: control (no report).
Cause: -.
Fix: -.

Observed:
- torch 2.13.0+cpu: graphs=1; recompiles=0
- torch 2.13.0+cpu: reproduces: control: 1 graph, nothing reported
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.n = nn.LayerNorm(8)
        s.p = nn.Linear(8, 24)
        s.o = nn.Linear(8, 8)

    def forward(s, x):
        q, k, v = (t.unsqueeze(1) for t in s.p(s.n(x)).chunk(3, -1))
        return x + s.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))


COMPILE = dict(fullgraph=True)


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
    return Model(4), [dict(x=torch.randn(2, 6, 8, requires_grad=True)) for _ in range(3)]


EXPECT = {"kind": "none", "block": "-", "cause": "none", "fix": "-"}
