"""A gradient penalty on the input of compiled blocks."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for block in self.layers:
            x = block(x)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8, requires_grad=True)} for _ in range(2)]


def step(model, batch):
    score = model(**batch).mean()
    (gradient,) = torch.autograd.grad(score, batch["x"], create_graph=True)
    loss = score + gradient.pow(2).sum()
    loss.backward()
    model.zero_grad(set_to_none=True)
    return loss.detach()
