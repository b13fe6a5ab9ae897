"""Noise level drawn with numpy."""

import numpy
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x) * float(numpy.random.uniform(0.9, 1.1))


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
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "python_rng_branch",
    "block": "layers.*",
    "line": "float(numpy.random.uniform(0.9, 1.1))",
}
