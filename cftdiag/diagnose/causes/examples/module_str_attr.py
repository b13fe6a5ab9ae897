"""The attention implementation is switched by name during training."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mode = "relu"

    def forward(self, x):
        y = self.linear(x)
        return x + (y.relu() if self.mode == "relu" else y.sin())


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
        block.mode = "relu" if step % 2 == 0 else "sin"


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(4)]
