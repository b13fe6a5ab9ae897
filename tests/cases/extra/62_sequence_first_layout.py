"""Blocks work on (length, batch, hidden); the changing dimension 0 is the length."""

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
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, ids):
        x = self.embed(ids).transpose(0, 1).contiguous()
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(), [{"ids": torch.randint(0, 50, (3, n))} for n in (7, 9, 12)]


EXPECT = {"kind": "recompile", "cause": "seq_len", "block": "layers.0", "guard": "size mismatch at index 0"}
