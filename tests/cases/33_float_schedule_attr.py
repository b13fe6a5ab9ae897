"""Aux-loss/LoRA scale changed by a schedule as a Python float -> new compile each step.

Source: pytorch/pytorch#115711; ComfyUI#9289-like LoRA scale; pattern of #107076 applied to a module. Cause:
float attribute of the module is a constant guard. Fix: (2.13: one recompile, then a dynamic float) store the
scalar as a registered buffer (tensor) and fill_() it.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: s.scale == 1.0
- torch 2.13.0+cpu: reproduces: partly: 1 recompile then dynamic float (was: storm)
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.scale = 1.0

    def forward(s, x):
        return x + s.p(x) * s.scale


def before_step(model, i):
    for b in model.layers:
        b.scale = 1.0 / (i + 1)


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
    return Model(), [dict(x=torch.randn(2, 8)) for _ in range(12)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "module_float_attr",
    "guard": ".scale ==",
    "limit_hit": False,
    "fix": "(2.13: one recompile, then a dynamic float) store the scalar as a registered buffer (tensor) and fill_() it",
}
