"""Validation runs in inference mode."""

import torch
from torch import nn


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


CALLS: list[int] = []


def step(model, batch):
    CALLS.append(1)
    if len(CALLS) == 2:
        with torch.inference_mode():
            model(batch["x"] + 0.0)
    else:
        model(**batch).sum().backward()


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]


EXPECT = {
    "kind": "recompile",
    "cause": "grad_mode",
    "block": "layers.*",
    "guard": "GLOBAL_STATE changed: grad_mode",
}
