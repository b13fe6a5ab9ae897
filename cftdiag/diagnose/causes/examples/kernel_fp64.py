"""With dynamic=True the eps of a normalisation reaches the kernel as a runtime scalar in double precision."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


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
    return Model(), [{"x": torch.randn(2, 100, 256)}]
