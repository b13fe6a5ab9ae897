"""Some blocks hold another feed-forward class; forward and block class are shared."""

import torch
from torch import nn


class Dense(nn.Module):
    def forward(self, x):
        return x.relu()


class Gated(nn.Module):
    def forward(self, x):
        return x.sigmoid() * x


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.feed = Gated() if index % 2 else Dense()

    def forward(self, x):
        return x + self.feed(self.linear(x))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block(index) for index in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {"kind": "recompile", "cause": "per_layer_attr", "block": "layers.1", "guard": "___check_type_id"}
