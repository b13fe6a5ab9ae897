"""SAC: a new functools.partial / set in the policy each step -> recompile.

Source: pytorch/pytorch#168163.
Cause: over-guarding of context_fn closures (object identity of the op set).
Fix: build the policy once at module scope and reuse the same object.

Observed:
- torch 2.13.0+cpu: graphs=1; recompiles=0
- torch 2.13.0+cpu: reproduces: NO (fixed; 4 steps, 0 recompiles)
"""

import functools

import torch
import torch.nn as nn
from torch.utils._ordered_set import OrderedSet
from torch.utils.checkpoint import CheckpointPolicy as CP
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.a = nn.Linear(8, 8)
        s.b = nn.Linear(8, 8)

    def inner(s, x):
        return x + s.b(s.a(x).relu())

    def forward(s, x, pol):
        return checkpoint(s.inner, x, use_reentrant=False, context_fn=pol)


def policy(ops, ctx, op, *a, **k):
    return CP.MUST_SAVE if op in ops else CP.PREFER_RECOMPUTE


def mkpol():
    return functools.partial(
        create_selective_checkpoint_contexts,
        functools.partial(policy, OrderedSet([torch.ops.aten.mm.default])),
    )


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
    return Model(1), [dict(x=torch.randn(2, 8), pol=mkpol()) for _ in range(4)]


EXPECT = {
    "kind": "none",
    "block": "layers.*",
    "cause": "none",
    "guard": "(older torch) context_fn / policy args id",
    "fix": "build the policy once at module scope and reuse the same object",
}
