"""Compiled optimizer.step recompiles on every scheduler step.

Source: pytorch/pytorch#107076, #163093. Cause: param_groups[i]['lr'] is a Python float. Fix: (2.13: one
recompile, then a dynamic float) lr=torch.tensor(...) and a scheduler that updates the tensor in place.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; breaks=Attempted to call function marked as skipped x1; Call to
  `torch._dynamo.graph_break()`
  x1; first reason: self.param_groups[0]['lr'] == 0.001
- torch 2.13.0+cpu: reproduces: partly: 1 recompile then dynamic float (was: storm)
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.p(x)


def wrap(model):
    model.opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    model.sched = torch.optim.lr_scheduler.LambdaLR(model.opt, lambda t: 1 / (t + 1))
    model.ostep = torch.compile(model.opt.step, backend="aot_eager")


def step(model, b):
    model(**b).pow(2).mean().backward()
    model.ostep()
    model.sched.step()
    model.opt.zero_grad()


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
    "block": "optimizer.step",
    "cause": "optimizer_lr_float",
    "guard": "['lr'] ==",
    "limit_hit": False,
    "fix": "(2.13: one recompile, then a dynamic float) lr=torch.tensor(...) and a scheduler that updates the tensor in place",
    "also": [
        ("graph_break", "unsupported_call"),
        ("graph_break", "disabled_function"),
        ("graph_break", "generic_break"),
    ],
}
