"""Only unpadded tokens are projected: a boolean index."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, keep):
        out = x.clone()
        out[keep] = self.linear(x[keep])
        return out


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
    return Model(), [{"x": torch.randn(2, 6, 8), "keep": torch.rand(2, 6) > 0.3} for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "cause": "dynamic_output_shape",
    "block": "layers.*",
    "line": "out[keep] = self.linear(x[keep])",
}
