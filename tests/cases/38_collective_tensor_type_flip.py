"""FSDP2+TP: input alternates between AsyncCollectiveTensor and Tensor, class guard fails.

Source: pytorch/pytorch#187073 (+ torchtitan#3737).
Cause: tensor subclass type guard.
Fix: await the collective before the block (wait_tensor) so it always sees a plain Tensor.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: expected type of 'x' to be a tensor type, ' but
  found <class
  'torch.distributed._functional_collectives.AsyncC
"""

import torch
import torch.nn as nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + s.p(x)


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block(i) for i in range(n))

    def forward(s, x, **kw):
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    return Model(1), [
        dict(x=AsyncCollectiveTensor(torch.randn(2, 8)) if i % 2 else torch.randn(2, 8)) for i in range(4)
    ]


EXPECT = {
    "kind": "recompile",
    "block": "layers.0",
    "cause": "tensor_type",
    "guard": "type mismatch",
    "fix": "await the collective before the block (wait_tensor) so it always sees a plain Tensor",
}
