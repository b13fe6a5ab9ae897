"""A custom operator registers a backward that is wrong by a factor."""

import torch
from torch import nn


@torch.library.custom_op("cftdiag_example::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3.0


@triple.register_fake
def _(x):
    return torch.empty_like(x)


def backward(ctx, grad):
    return grad * (2.0 if torch.compiler.is_compiling() else 3.0)


triple.register_autograd(backward)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + triple(self.linear(x))


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
