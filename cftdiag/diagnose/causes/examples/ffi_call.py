"""A C function is called through ctypes."""

import ctypes
import ctypes.util

import torch
from torch import nn

libm = ctypes.CDLL(ctypes.util.find_library("m") or None)
libm.sqrt.restype, libm.sqrt.argtypes = ctypes.c_double, [ctypes.c_double]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x) * libm.sqrt(2.0)


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
