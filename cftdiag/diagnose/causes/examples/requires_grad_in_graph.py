"""A hook inside the block makes its input require grad, as adapters under gradient checkpointing do."""

import torch
from torch import nn


def make_input_trainable(module, args):
    args[0].requires_grad_(True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.base = nn.Linear(8, 8)
        self.adapter = nn.Linear(8, 8, bias=False)
        for parameter in (*self.norm.parameters(), *self.base.parameters()):
            parameter.requires_grad_(False)
        self.base.register_forward_pre_hook(make_input_trainable)

    def forward(self, x):
        y = self.norm(x)
        return x + self.base(y) + self.adapter(y)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
