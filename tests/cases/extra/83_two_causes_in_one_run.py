"""A length changes at one step and a flag at another: two causes, each with its own steps."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.gate = True

    def forward(self, x):
        y = self.linear(x)
        return x + (y.relu() if self.gate else y)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def before_step(model, step):
    for block in model.layers:
        block.gate = step != 3


def build():
    return Model(), [{"x": torch.randn(2, n, 8)} for n in (6, 9, 9, 9)]


EXPECT = {
    "kind": "recompile",
    "cause": "seq_len",
    "block": "layers.0",
    "guard": "size mismatch at index 1",
    "also": [("recompile", "module_bool_attr")],
}
