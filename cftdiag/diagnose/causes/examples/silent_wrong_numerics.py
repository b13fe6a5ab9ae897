"""A fast path for compiled code forgets the scale: nothing raises, the loss is wrong."""

import torch
from torch import nn


def attention(x):
    if torch.compiler.is_compiling():
        return (x @ x.transpose(1, 2)).softmax(-1) @ x
    return (x @ x.transpose(1, 2) / x.shape[-1] ** 0.5).softmax(-1) @ x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + attention(self.linear(x))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
