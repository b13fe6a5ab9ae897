"""Sliding/full attention mix compiles one variant per window; TP/EP variants push past 8.

Source: pytorch/torchtitan#3737, #3898. Cause: layers share one forward code object but differ in Python
attributes (window, layer kind). Fix: expected: one variant per kind; raise recompile_limit above the number
of kinds or isolate by class/closure.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: s.window == 4
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.window = None if i % 2 else 4

    def forward(s, x):
        q = s.p(x).unsqueeze(1)
        t = torch.arange(x.shape[1])
        m = t[None] <= t[:, None]
        if s.window is not None:
            m = m & (t[:, None] - t[None] < s.window)
        return x + F.scaled_dot_product_attention(q, q, q, attn_mask=m).squeeze(1)


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
    return Model(6), [dict(x=torch.randn(2, 6, 8)) for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.1",
    "cause": "per_layer_attr",
    "guard": ".window ==",
    "fix": "expected: one variant per kind; raise recompile_limit above the number of kinds or isolate by class/closure",
}
