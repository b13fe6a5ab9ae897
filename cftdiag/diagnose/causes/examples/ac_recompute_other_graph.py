"""A call counter in a checkpointed block: the limit trips between a forward and its recomputation."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.linear(x).relu().sin() * min(1.0, self.calls / 100)


class Model(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        x = x.requires_grad_()
        for block in self.layers:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def before_step(model, step):
    if step == 0:  # a sanity pass takes one cache entry, so that the limit is met by a recomputation
        with torch.no_grad():
            model.layers[0](torch.randn(2, 6, 8))


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(8)]
