"""The compiled optimizer reads a weight decay that a schedule changes."""

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
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def wrap(model):
    model.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    model.optimizer_step = torch.compile(model.optimizer.step, backend="aot_eager")


def step(model, batch):
    model(**batch).pow(2).mean().backward()
    model.optimizer_step()
    model.optimizer.zero_grad()
    for group in model.optimizer.param_groups:
        group["weight_decay"] *= 0.9


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(4)]


EXPECT = {
    "kind": "recompile",
    "cause": "optimizer_lr_float",
    "block": "optimizer.step",
    "guard": "['weight_decay'] ==",
    "also": [
        ("graph_break", "unsupported_call"),
        ("graph_break", "disabled_function"),
        ("graph_break", "generic_break"),
    ],
}
