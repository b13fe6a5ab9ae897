"""The block draws its noise under fork_rng."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.random.fork_rng():
            noise = torch.randn_like(x)
        return x + self.linear(x) + noise


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x, **kwargs):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for block in self.layers:
            x = block(x, **kwargs)
        return x


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "rng_seed_call",
    "block": "layers.*",
    "line": "with torch.random.fork_rng():",
    "also": [("perf", "graph_runs_eager")],
}
