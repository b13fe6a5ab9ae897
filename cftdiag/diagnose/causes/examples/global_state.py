"""Autocast is on in some steps only."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).to(x.dtype)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


CALLS: list[int] = []


def step(model, batch):
    CALLS.append(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=len(CALLS) > 1):
        out = model(**batch)
    out.float().sum().backward()


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]
