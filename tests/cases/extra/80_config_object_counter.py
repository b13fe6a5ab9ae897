"""The trainer bumps a number on a configuration object that the block reads."""

import types

import torch
from torch import nn

CONFIG = types.SimpleNamespace(phase=0)
FACTORS = [1.0, 0.5, 0.25]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.config = CONFIG

    def forward(self, x):
        return x + self.linear(x) * FACTORS[self.config.phase]


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
    CONFIG.phase = step


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]


EXPECT = {"kind": "recompile", "cause": "module_int_attr", "block": "layers.0", "guard": "phase =="}
