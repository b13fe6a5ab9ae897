"""Each block looks up its own slice by its index."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.layer_idx = layer_idx

    def forward(self, x, extra):
        return x + self.linear(x) + extra[:, self.layer_idx, None]


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block(index) for index in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(10), [{"x": torch.randn(2, 6, 8), "extra": torch.randn(2, 10, 8)} for _ in range(2)]
