"""An adapter gets another rank in the middle of training."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.adapt(rank=2)

    def adapt(self, rank):
        self.A = nn.Parameter(torch.randn(rank, 8))
        self.B = nn.Parameter(torch.zeros(8, rank))

    def forward(self, x):
        return x + self.linear(x) + x @ self.A.T @ self.B.T


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x)
        return x


def before_step(model, step):
    if step == 2:
        for block in model.layers:
            block.adapt(rank=4)


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]
