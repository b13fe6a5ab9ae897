"""Control: compiled blocks under activation checkpointing with dropout and dynamic lengths."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.linear(x)).relu()


class Model(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.detach().requires_grad_()
        for block in self.layers:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def build():
    return Model(), [{"x": torch.randn(3, n, 8)} for n in (10, 12, 17)]


EXPECT = {"kind": "none", "cause": "none", "block": "-"}
