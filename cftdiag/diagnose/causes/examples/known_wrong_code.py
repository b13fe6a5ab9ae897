"""Two modulated norms share one table of scales and shifts: the gradients of its chunks are lost."""

import torch
from torch import nn

WIDTH = 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4, WIDTH) / 32)
        self.first = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.second = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x):
        shift, scale, shift_again, scale_again = self.table.chunk(4, dim=1)
        x = self.first(x) * (1 + scale) + shift
        return self.second(x) * (1 + scale_again) + shift_again


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
    return Model(), [{"x": torch.randn(1, 8192, WIDTH)} for _ in range(2)]
