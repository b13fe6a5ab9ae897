"""The hook is an object whose __call__ is disabled."""

import torch
from torch import nn


class Observer:
    @torch.compiler.disable
    def __call__(self, module, args, output):
        return None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.linear.register_forward_hook(Observer())

    def forward(self, x):
        return x + self.linear(x)


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
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "disabled_hook",
    "block": "layers.*",
    "line": "return x + self.linear(x)",
}
