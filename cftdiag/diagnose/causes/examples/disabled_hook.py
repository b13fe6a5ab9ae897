"""A module inside the block has a forward hook that Dynamo may not trace."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.linear.register_forward_pre_hook(torch.compiler.disable(lambda module, args: None))

    def forward(self, x):
        return x + self.linear(x).relu()


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
