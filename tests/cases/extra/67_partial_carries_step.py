"""A partial made anew for each step carries the step."""

import functools

import torch
from torch import nn


def scaled(x, table):
    for factor in table:
        x = x * factor
    return x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, scale):
        return x + scale(self.linear(x))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [
        {"x": torch.randn(2, 6, 8), "scale": functools.partial(scaled, table=[1.0] * n)} for n in (1, 2, 3)
    ]


EXPECT = {"kind": "recompile", "cause": "closure_identity", "block": "layers.0", "guard": "keywords"}
