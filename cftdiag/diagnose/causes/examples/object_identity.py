"""An enum member chooses the activation, and another one comes later."""

import enum

import torch
from torch import nn


class Activation(enum.Enum):
    RELU = 1
    SIN = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, activation):
        y = self.linear(x)
        return x + (y.relu() if activation is Activation.RELU else y.sin())


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
        {"x": torch.randn(2, 6, 8), "activation": a}
        for a in (Activation.RELU, Activation.SIN, Activation.RELU)
    ]
