"""Activation-capture hook added after warm-up (distillation) never fires or costs a recompile.

Source: pytorch/pytorch#117758, #173452. Cause: forward hooks registered after compilation: hook dict guard.
Fix: register hooks before the first compiled call, or torch._dynamo.config.skip_nnmodule_hook_guards=False,
or torch._dynamo.reset().

Observed:
- torch 2.13.0+cpu: graphs=1; recompiles=0; check={'hook_calls': 0}
- torch 2.13.0+cpu: reproduces: yes, still silent: hook called 0 times, no recompile
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.p(x)


SEEN = []


def before_step(model, i):
    if i == 1:
        model.layers[0].p.register_forward_hook(lambda m, a, o: SEEN.append(o.detach()))


def check(model, losses):
    return {"hook_calls": len(SEEN)}


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
    return Model(1), [dict(x=torch.randn(2, 8)) for _ in range(3)]


EXPECT = {
    "kind": "error",
    "block": "layers.*",
    "cause": "late_hook_ignored",
    "guard": "none: hook dicts are not guarded (skip_nnmodule_hook_guards)",
    "fix": "register hooks before the first compiled call, or torch._dynamo.config.skip_nnmodule_hook_guards=False, or torch._dynamo.reset()",
}
