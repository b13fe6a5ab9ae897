"""The whole model is compiled as one graph: its 12 equal blocks are unrolled."""

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

    def forward(self, x, **kwargs):
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def wrap(model):
    model.compile(backend="aot_eager")


def build():
    return Model(12), [{"x": torch.randn(2, 6, 8, requires_grad=True)} for _ in range(2)]
