"""The model logs through a helper with a cache, as libraries do."""

import functools
import logging

import torch
from torch import nn

LOG = logging.getLogger("library")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False


@functools.lru_cache(None)
def once(logger, message):
    logger.warning(message)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        if x.shape[1] > 4:
            once(LOG, "long input")
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


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "logging_call",
    "block": "layers.*",
    "line": "logger.warning(message)",
}
