"""Blocks compiled one by one that break (a print, a number read from a tensor) and recompile by an attribute."""

import os

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.scale = 1

    def forward(self, x):
        x = self.linear(x)
        if self.scale > 2:
            print("scaled")
        return x * self.scale


model = nn.Sequential(*(Block() for _ in range(2)))
for block in model:
    block.compile(backend=os.environ.get("BACKEND", "inductor"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model[1].scale = step
    loss = model(torch.ones(4, 16)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
