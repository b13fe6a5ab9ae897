"""An optional mask travels through **kwargs and is None in some batches."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, **kwargs):
        mask = kwargs.get("mask")
        y = self.linear(x)
        return x + (y if mask is None else y * mask[..., None])


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
        {"x": torch.randn(2, 6, 8), "mask": m} for m in (torch.ones(2, 6), None, torch.ones(2, 6))
    ]


EXPECT = {"kind": "recompile", "cause": "none_vs_tensor", "block": "layers.0", "guard": "mask"}
