"""Reference-policy pass with adapters disabled: second variant (older torch: toggle ignored).

Source: meta-pytorch/torchtune#721 (old: silently ignored).
Cause: bool attribute of the LoRA layer guarded.
Fix: expected 2 variants (DPO/KTO); warm both, or keep a separate frozen reference model.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: s.disabled == False; check=True
- torch 2.13.0+cpu: reproduces: changed: was silently ignored, now 1 recompile and right output
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.w = nn.Linear(8, 8)
        s.a = nn.Linear(8, 2)
        s.b = nn.Linear(2, 8)
        s.disabled = False

    def forward(s, x):
        y = s.w(x)
        return x + y if s.disabled else x + y + s.b(s.a(x))


def before_step(model, i):
    for b in model.layers:
        b.disabled = i % 2 == 1


def check(model, losses):
    return len({round(float(loss), 5) for loss in losses}) == 2


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
    return Model(), [dict(x=torch.ones(2, 8)) for _ in range(4)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "module_bool_attr",
    "guard": ".disabled",
    "fix": "expected 2 variants (DPO/KTO); warm both, or keep a separate frozen reference model",
}
