"""Frozen embeddings: the input of the first block needs no gradient, that of the later ones does."""

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
    return Model(4), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
