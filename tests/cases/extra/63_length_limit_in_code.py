"""A rotary table is rescaled beyond a length: the range of lengths is a guard although shapes are dynamic."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return x + (y * 0.5 if x.shape[1] > 16 else y)


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
    return Model(), [{"x": torch.randn(2, n, 8)} for n in (10, 12, 20, 24)]


EXPECT = {"kind": "recompile", "cause": "size_specialized", "block": "layers.0", "guard": "x.size()[1]"}
