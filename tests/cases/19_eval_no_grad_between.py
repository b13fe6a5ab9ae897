"""A second compile appears at the first validation pass and again for train flag.

Source: pytorch/pytorch#100977 (old: wrong reuse); Deci-AI/super-gradients#1172 (extra compile at validation).
Cause: global grad_mode and module.training are guarded; eval under no_grad = a new variant. Fix: expected:
one train + one eval variant; warm both, keep eval context identical (no_grad AND eval() together).

Observed:
- torch 2.13.0+cpu: graphs=3; recompiles=2; first reason: GLOBAL_STATE changed: grad_mode
- torch 2.13.0+cpu: reproduces: changed: was wrong reuse, now 2 recompiles
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.d = nn.Dropout(0.1)

    def forward(s, x):
        return x + s.d(s.p(x))


def step(model, b):
    ev = b.pop("ev")
    with torch.set_grad_enabled(ev != "nograd"):
        model.train(ev is None)
        out = model(**b)
    if out.requires_grad:
        out.sum().backward()


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
    return Model(), [dict(x=torch.randn(2, 8), ev=e) for e in (None, "nograd", None, "eval", None)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "grad_mode",
    "guard": "GLOBAL_STATE changed: grad_mode / .training",
    "fix": "expected: one train + one eval variant; warm both, keep eval context identical (no_grad AND eval() together)",
    "also": [("recompile", "training_flag")],
}
