"""Block compiled twice under AMP: hidden states are fp32 into block 0 and bf16 later.

Source: pytorch/pytorch#128134.
Cause: residual stream dtype differs between calls; dtype is a tensor guard.
Fix: cast the embedding output to the compute dtype once, or keep residual fp32 everywhere.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: tensor 'x' dtype mismatch. expected Float, actual
  BFloat16
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return s.p(x).relu()


def step(model, b):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**b)
    out.float().sum().backward()


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block(i) for i in range(n))

    def forward(s, x, **kw):
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    return Model(3), [dict(x=torch.randn(2, 8)) for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.1",
    "cause": "dtype",
    "guard": "dtype mismatch",
    "fix": "cast the embedding output to the compute dtype once, or keep residual fp32 everywhere",
}
