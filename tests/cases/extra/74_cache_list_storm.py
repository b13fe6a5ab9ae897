"""A cache list grows by one entry per step until the limit."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, cache):
        return x + self.linear(x) + sum(c.mean() for c in cache)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [
        {"x": torch.randn(2, 6, 8), "cache": [torch.randn(8) for _ in range(n)]} for n in range(1, 12)
    ]


EXPECT = {
    "kind": "recompile",
    "cause": "container_len",
    "block": "layers.0",
    "guard": "len(cache)",
    "limit_hit": True,
}
