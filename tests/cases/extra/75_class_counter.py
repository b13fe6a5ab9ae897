"""A counter of all blocks is an attribute of their class."""

import torch
from torch import nn

FACTORS = [1.0, 0.5, 0.25, 0.125]


class Block(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        Block.calls += 1
        return x + self.linear(x) * FACTORS[Block.calls % 4]


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
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]


EXPECT = {"kind": "recompile", "cause": "class_attr", "block": "layers.*", "guard": "calls"}
