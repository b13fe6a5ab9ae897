"""Only the upper blocks are trained: their weights need gradients, the lower ones do not."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x)


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Block().requires_grad_(i >= layers // 2) for i in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_()
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(4), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "cause": "requires_grad",
    "block": "layers.2",
    "guard": "requires_grad mismatch",
}
