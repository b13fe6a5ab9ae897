"""Inputs alternate between two memory layouts of the same shape."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.convolution = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return self.convolution(x)


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
    return Model(), [
        {"x": torch.randn(2, 8, 6, 6).to(memory_format=f)}
        for f in (torch.contiguous_format, torch.channels_last, torch.contiguous_format)
    ]


EXPECT = {"kind": "recompile", "cause": "stride", "block": "layers.0", "guard": "stride mismatch"}
