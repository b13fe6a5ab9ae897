"""A table is looked up under a key that is made of the length."""

import torch
from torch import nn

COMPILE = {"dynamic": True}
TABLES: dict[str, torch.Tensor] = {}


def table(length, width):
    key = f"{length}x{width}"
    if key not in TABLES:
        TABLES[key] = torch.outer(torch.arange(64.0), torch.arange(float(width)))
    return TABLES[key]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x) * table(x.shape[1], x.shape[2])[: x.shape[1]].cos()


class Model(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(), [{"x": torch.randn(2, n, 8)} for n in (6, 9, 12)]
