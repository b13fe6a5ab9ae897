"""Extra compile whenever a dim is 1 (batch of 1 / single-token call) even with dynamic shapes.

Source: pytorch/pytorch#141589.
Cause: 0/1 specialisation of symbolic sizes.
Fix: avoid size-1 batches (min batch 2 / pad) or warm both variants; mark_unbacked for that dim.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: 2 <= x.size()[0]
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.p(x)


COMPILE = dict(dynamic=True)


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
    return Model(), [dict(x=torch.randn(b, 6, 8)) for b in (4, 3, 1, 5, 1)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.0",
    "cause": "size_0_1",
    "guard": "2 <= x.size()[0]",
    "fix": "avoid size-1 batches (min batch 2 / pad) or warm both variants; mark_unbacked for that dim",
}
