"""Autocast is on for the forward only; the recomputation runs without it."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).float().sin()


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


class Forward(torch.nn.Module):
    """Autocast entered inside the checkpointed function by a flag that is gone in backward."""

    def __init__(self, block):
        super().__init__()
        self.block, self.half = block, True

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return self.block(x)


def step(model, batch):
    x = batch["x"].requires_grad_()
    wrapped = [Forward(block) for block in model.layers]
    for block in wrapped:
        x = checkpoint(block, x, use_reentrant=False)
    for block in wrapped:
        block.half = False
    x.sum().backward()


def build():
    return Model(), [{"x": torch.randn(2, 6, 8)}]


EXPECT = {
    "kind": "error",
    "cause": "ac_dtype_mismatch",
    "block": "layers.*",
    "guard": "",
    "also": [("recompile", "global_state"), ("recompile", "dtype")],
}
