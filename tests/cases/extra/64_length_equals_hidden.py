"""The first batch is as long as the hidden size is wide."""

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
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [{"x": torch.randn(2, n, 8)} for n in (8, 12, 16)]


EXPECT = {
    "kind": "recompile",
    "cause": "duck_shape",
    "block": "layers.0",
    "guard": "size mismatch at index 1",
}
