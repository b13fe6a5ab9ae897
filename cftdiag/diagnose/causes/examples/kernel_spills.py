"""One expression over many tensors, each of which is needed twice: a thread cannot hold them all."""

import functools

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self, parts=32):
        super().__init__()
        self.register_buffer("scales", torch.rand(parts, 512))

    def forward(self, x):
        parts = [x * scale for scale in self.scales]
        top = functools.reduce(torch.maximum, parts).detach()
        return x + sum(torch.exp(part - top) for part in parts)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(1), [{"x": torch.randn(2, 100, 512)}]
