"""Every padded length compiles again until recompile_limit, then eager.

Source: HomebrewML/HeavyBall#16; pytorch/pytorch#188150 (HF loop with per-batch padding).
Cause: dynamic=False (or mark_static) with pad-to-longest collator.
Fix: bucket/pad to a few fixed lengths or pack; or dynamic=None/True / mark_dynamic(x, 1).

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason: tensor 'x' size mismatch at
  index 1. expected 5, actual 6
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.p(x)


COMPILE = dict(dynamic=False)


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
    return Model(), [dict(x=torch.randn(2, n, 8)) for n in range(5, 16)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "seq_len",
    "guard": "size mismatch at index 1",
    "limit_hit": True,
    "fix": "bucket/pad to a few fixed lengths or pack; or dynamic=None/True / mark_dynamic(x, 1)",
}
