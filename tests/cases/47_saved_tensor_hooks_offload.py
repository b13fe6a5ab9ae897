"""Activation offload hooks + compile: all unpack hooks fire at once, no memory saved.

Source: pytorch/pytorch#148222, meta-pytorch/torchtune#2684.
Cause: saved_tensors_hooks act on the compiled autograd node as a whole (not per op).
Fix: use checkpoint/SAC in the compiled region or GraphModule hooks; offload at block boundaries.

Observed:
- torch 2.13.0+cpu: graphs=1; recompiles=0; check={'sequence': 'pppppp|uuuuuupppppp|uuuuuu'}
- torch 2.13.0+cpu: reproduces: yes: all 6 packs then all 6 unpacks
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.a = nn.Linear(8, 8)
        s.b = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.b(s.a(x).sin()).cos()


LOG = []


def step(model, b):
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (LOG.append("p"), t)[1], lambda t: (LOG.append("u"), t)[1]
    ):
        out = model(**b)
    LOG.append("|")
    out.sum().backward()


def check(model, losses):
    return {"sequence": "".join(LOG[:40])}


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
    return Model(1), [dict(x=torch.randn(2, 8)) for _ in range(2)]


EXPECT = {
    "kind": "perf",
    "block": "layers.*",
    "cause": "saved_tensor_hooks_whole_graph",
    "guard": "pack/unpack counts at one node",
    "fix": "use checkpoint/SAC in the compiled region or GraphModule hooks; offload at block boundaries",
}
