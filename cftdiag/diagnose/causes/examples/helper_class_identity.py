"""A helper class is defined inside a function, so each call has a new class."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, helper):
        return x + helper.apply(self.linear(x))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def make():
    class Helper:
        def apply(self, x):
            return x * 0.5

    return Helper()


def build():
    return Model(), [{"x": torch.randn(2, 6, 8), "helper": make()} for _ in range(3)]
