"""Mixed precision is active in the forward and gone in the recomputation."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)
        self.half = True

    def forward(self, x):
        if self.half:
            x = x.bfloat16()
        return x.float() + nn.functional.linear(x, self.linear.weight.to(x.dtype)).float()


class Model(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.requires_grad_()
        for block in self.layers:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def step(model, batch):
    out = model(**batch)
    for block in model.layers:
        block.half = False
    out.sum().backward()


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)}]
