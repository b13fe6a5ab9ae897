"""Control: dynamic lengths through attention, dropout and a gate; nothing to report."""

import torch
from torch import nn

COMPILE = {"dynamic": True}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        q = self.linear(x).unsqueeze(1)
        y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).squeeze(1)
        return x + self.dropout(y) * torch.sigmoid(y)


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
    return Model(), [{"x": torch.randn(3, n, 8)} for n in (10, 12, 17, 31)]


EXPECT = {"kind": "none", "cause": "none", "block": "-"}
