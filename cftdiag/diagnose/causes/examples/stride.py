"""Every other batch comes transposed."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


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
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [
        {"x": torch.randn(2, 6, 8) if i % 2 else torch.randn(6, 2, 8).transpose(0, 1)} for i in range(4)
    ]
