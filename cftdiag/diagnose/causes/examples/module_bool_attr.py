"""Adapters are switched off for the reference pass."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.adapter = True

    def forward(self, x):
        return x + self.linear(x) if self.adapter else x


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def before_step(model, step):
    for block in model.layers:
        block.adapter = step % 2 == 0


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(4)]
