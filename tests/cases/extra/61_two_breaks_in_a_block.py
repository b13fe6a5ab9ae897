"""A warning first and a scalar that feeds nothing behind it: the second is captured by fullgraph, the first
is not.
"""

import warnings

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        warnings.warn("slow path", stacklevel=2)
        scale = float(x.abs().max())
        return x + self.linear(x) / (1.0 + scale)


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
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "logging_call",
    "block": "layers.*",
    "line": 'warnings.warn("slow path", stacklevel=2)',
    "also": [("graph_break", "tensor.item")],
}
