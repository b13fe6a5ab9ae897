"""Every other block has a window: one variant per kind of block."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.window = None if index % 2 else 4

    def forward(self, x):
        y = self.linear(x)
        return x + (y if self.window is None else y[:, -self.window :].mean(1, keepdim=True))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block(index) for index in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(6), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
