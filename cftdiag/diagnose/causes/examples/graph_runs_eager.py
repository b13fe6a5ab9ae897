"""Someone set the stance to force_eager for a comparison and forgot it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def before_step(model, step):
    if step == 0:
        torch.compiler.set_stance("force_eager")


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]
