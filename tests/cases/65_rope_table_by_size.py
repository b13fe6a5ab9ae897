"""A rotary table is kept in a dict under a key that is made of the size.

Source: huggingface/diffusers#12061, #12452; keras-team/keras#23277. Cause: the size in an f-string is turned into a
constant, so dynamic=True does not help. Fix: one table for the largest size, sliced.

Observed:
- torch 2.13.0+cpu: 4 graphs for 4 lengths; torch's record symbolic_shape_specialization names the line of the key
"""

import torch
import torch.nn as nn

TABLES = {}


def table(n, d):
    key = f"{n}x{d}"
    if key not in TABLES:
        TABLES[key] = torch.outer(torch.arange(64, dtype=torch.float32), torch.arange(d, dtype=torch.float32))
    return TABLES[key]


class Block(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.p = nn.Linear(d, d)

    def forward(s, x):
        t = table(x.shape[1], x.shape[2])
        return x + s.p(x) * t[: x.shape[1]].cos()


class Model(nn.Module):
    def __init__(s, n=1):
        super().__init__()
        s.layers = nn.ModuleList(Block() for _ in range(n))

    def forward(s, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())
        for b in s.layers:
            x = b(x)
        return x


COMPILE = {"dynamic": True}


def build():
    return Model(), [dict(x=torch.randn(2, n, 16)) for n in (6, 9, 12, 15)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "size_specialized",
    "line": 'key = f"{n}x{d}"',
    "fix": "build one table for the largest size and slice it; no size in a key",
}
