"""The block gets its position offset as an int and slices a table with it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, table, offset):
        return x + self.linear(x) + table[offset : offset + x.shape[1]]


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
        {"x": torch.randn(2, 6, 8), "table": torch.randn(64, 8), "offset": 6 * i} for i in range(4)
    ]


EXPECT = {"kind": "recompile", "cause": "int_arg", "block": "layers.0", "guard": "offset"}
