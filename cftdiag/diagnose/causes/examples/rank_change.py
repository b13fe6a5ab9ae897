"""The mask has two dimensions in one call and four in the next."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, mask):
        return x + self.linear(x) * mask.sum()


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, mask):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, mask)
        return x


def build():
    masks = (torch.ones(2, 6), torch.ones(2, 1, 6, 6), torch.ones(2, 6))
    return Model(), [{"x": torch.randn(2, 6, 8), "mask": mask} for mask in masks]
