"""CheckpointError: dtype differs between forward and recompute (mixed precision inputs cast outside AC).

Source: pytorch/pytorch#148831, #141896. Cause: input is cast by a wrapper (FSDP2 mp_policy) in forward only,
or weights cast cache under autocast: recompute sees another dtype. Fix: cast inputs before the checkpoint
boundary; FSDP2 outside AC; cache_enabled=False for autocast.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: s.mp == True; raises CheckpointError:
  torch.utils.checkpoint: Recomputed values
  for the following tensors have different metadata t
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.mp = True

    def forward(s, x):
        if s.mp:
            x = x.bfloat16()
        return x.float() + F.linear(x, s.p.weight.to(x.dtype)).float()


def step(model, b):
    x = b["x"].requires_grad_()
    for blk in model.layers:
        x = checkpoint(blk, x, use_reentrant=False)
    for blk in model.layers:
        blk.mp = False  # context of the forward is gone at backward time
    x.sum().backward()


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
    return Model(2), [dict(x=torch.randn(2, 8))]


EXPECT = {
    "kind": "error",
    "block": "layers.*",
    "cause": "ac_dtype_mismatch",
    "guard": "Recomputed values ... different metadata: dtype",
    "fix": "cast inputs before the checkpoint boundary; FSDP2 outside AC; cache_enabled=False for autocast",
    "also": [("recompile", "module_bool_attr")],
}
