"""An activation hook is registered after the first step and never fires."""

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


SEEN: list[torch.Tensor] = []


def before_step(model, step):
    if step == 1:
        model.layers[0].linear.register_forward_hook(
            lambda module, args, output: SEEN.append(output.detach())
        )


def check(model, losses):
    return {"hook_calls": len(SEEN)}


def build():
    return Model(1), [{"x": torch.randn(2, 6, 8)} for _ in range(3)]
