"""The optimizer step is compiled and a scheduler changes its float learning rate."""

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
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # what a trained embedding gives
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def wrap(model):
    model.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    model.scheduler = torch.optim.lr_scheduler.LambdaLR(model.optimizer, lambda step: 1 / (step + 1))
    model.optimizer_step = torch.compile(model.optimizer.step, backend="aot_eager")


def step(model, batch):
    model(**batch).pow(2).mean().backward()
    model.optimizer_step()
    model.scheduler.step()
    model.optimizer.zero_grad()


def build():
    return Model(1), [{"x": torch.randn(2, 6, 8)} for _ in range(4)]
