"""The block pads to a multiple of 8 only when it has to: one graph for each case."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        rest = x.shape[1] % 8
        if rest:
            x = nn.functional.pad(x, (0, 0, 0, 8 - rest))
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
    return Model(1), [{"x": torch.randn(2, n, 8)} for n in (16, 24, 20, 13)]
