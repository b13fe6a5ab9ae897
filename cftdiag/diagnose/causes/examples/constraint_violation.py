"""A dimension is marked dynamic, and the block fixes it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.position = nn.Parameter(torch.zeros(6, 8))

    def forward(self, x):
        return x + self.linear(x) + self.position


class Model(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        torch._dynamo.mark_dynamic(x, 1)
        for block in self.layers:
            x = block(x)
        return x


def build():
    x = torch.randn(2, 6, 8)
    return Model(), [{"x": x}]
