"""LoRA run compiles the block twice: first block's input has requires_grad=False, later ones True.

Source: pytorch/pytorch#141039. Cause: tensor requires_grad guard differs between block 0 and block 1..
(frozen embeddings). Fix: make the embedding output require grad (x.requires_grad_() /
enable_input_require_grads) or accept exactly 2 variants.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: tensor 'x' requires_grad mismatch. expected
  requires_grad=0
- torch 2.13.0+cpu: reproduces: yes
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.w = nn.Linear(8, 8).requires_grad_(False)
        s.a = nn.Linear(8, 2, bias=False)
        s.b = nn.Linear(2, 8, bias=False)

    def forward(s, x):
        return x + s.w(x) + s.b(s.a(x))


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block(i) for i in range(n))

    def forward(s, x, **kw):
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    return Model(4), [dict(x=torch.randn(2, 8)) for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.1",
    "cause": "requires_grad",
    "guard": "requires_grad mismatch",
    "fix": "make the embedding output require grad (x.requires_grad_() / enable_input_require_grads) or accept exactly 2 variants",
}
