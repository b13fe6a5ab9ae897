"""Block keeps its own step counter; recompiles each step until the limit.

Source: pytorch/pytorch#128319, #140464, #115711. Cause: int attribute of nn.Module is specialised (constant
guard) and mutated each call. Fix: hold the counter as a tensor buffer or outside the module; or
torch._dynamo.config.allow_unspec_int_on_nn_module=True.

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason: s.step == 0
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.step = 0

    def forward(s, x):
        s.step += 1
        return x + s.p(x) * min(1.0, s.step / 100)


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
    return Model(1), [dict(x=torch.randn(2, 8)) for _ in range(12)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "module_int_attr",
    "guard": ".step ==",
    "limit_hit": True,
    "fix": "hold the counter as a tensor buffer or outside the module; or torch._dynamo.config.allow_unspec_int_on_nn_module=True",
}
