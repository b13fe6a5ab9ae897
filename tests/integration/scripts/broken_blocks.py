"""Blocks compiled one by one, by a backend of the script's own, that break (a print) and recompile by an attribute."""

import os

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

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


class Counting:
    """Counts graphs, so that a run in which nothing was compiled is noticed."""

    def __init__(self, name):
        self.inner, self.graphs = lookup_backend(name), 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return self.inner(graph, inputs)


counting = Counting(os.environ.get("BACKEND", "inductor"))
model = nn.Sequential(*(Block() for _ in range(2)))
for block in model:
    block.compile(backend=counting)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model[1].scale = step
    loss = model(torch.ones(4, 16)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if not counting.graphs:
    raise SystemExit("nothing was compiled")
