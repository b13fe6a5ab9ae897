"""A mode is passed to the block as a string."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, mode):
        y = self.linear(x)
        return x + (y.relu() if mode == "train" else y)


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
    return Model(), [{"x": torch.randn(2, 6, 8), "mode": m} for m in ("train", "probe", "train")]


EXPECT = {"kind": "recompile", "cause": "int_arg", "block": "layers.0", "guard": "mode =="}
