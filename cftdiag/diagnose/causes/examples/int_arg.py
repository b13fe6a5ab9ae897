"""The step number is passed to the block, which looks a factor up with it."""

import torch
from torch import nn

FACTORS = {step: 1.0 / (step + 1) for step in range(64)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, step):
        return x + self.linear(x) * FACTORS[step]


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
    return Model(), [{"x": torch.randn(2, 6, 8), "step": step} for step in range(4)]
