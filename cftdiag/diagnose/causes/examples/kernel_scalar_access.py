"""Rows of an odd length: no thread can read more than one number at a time."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self, width=255):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.softmax(x, -1) * self.weight


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(), [{"x": torch.randn(4, 701, 255)}]
