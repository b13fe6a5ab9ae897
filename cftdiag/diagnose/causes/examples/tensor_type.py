"""Every other batch is a Parameter."""

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
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(), [
        {"x": nn.Parameter(torch.randn(2, 6, 8)) if i % 2 else torch.randn(2, 6, 8, requires_grad=True)}
        for i in range(4)
    ]
