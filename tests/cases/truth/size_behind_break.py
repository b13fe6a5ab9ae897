"""What waits behind the break needs a size: once sizes are symbols, the graph before it has no operator and one output.

Truth (torch 2.13, `eager` and `aot_eager`, dynamic=None): the backend is given 1 graph at step 1, 2 at step 2, none at step 3.
"""

import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        size = x.shape[1]
        torch._dynamo.graph_break()
        return x * size


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList([Block()])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


def build():
    torch.manual_seed(0)
    return Model(), [{"ids": torch.ones(2, n, dtype=torch.long)} for n in (5, 7, 9)]
