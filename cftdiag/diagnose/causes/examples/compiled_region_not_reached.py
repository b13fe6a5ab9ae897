"""The model calls forward directly, which the in-place compile does not see."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_()
        for block in self.layers:
            x = block.forward(x)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
