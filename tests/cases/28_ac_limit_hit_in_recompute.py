"""CheckpointError in backward some steps into the run; forward ran compiled, recompute did not.

Source: unslothai/unsloth-zoo#1001; related: pytorch/pytorch#166926, pytorch/torchtitan#1991. Cause:
checkpoint(compiled block): recompute selects another cache entry than forward (here: the recompile limit
trips between them, so recompute is eager). Fix: remove the per-call guard; put checkpoint inside the compiled
region; no variant switch between forward and recompute (fixed shapes / mark_dynamic; LRU off).

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason: GLOBAL_STATE changed:
  grad_mode; raises CheckpointError:
  torch.utils.checkpoint: Recomputed values for the following tensors have different metadata t
- torch 2.13.0+cpu: reproduces: yes (CheckpointError at the 7th step). The LRU-tiebreak form did not raise
  with 7 toy blocks x 2 backends
  here
"""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.step = 0

    def forward(s, x):
        s.step += 1
        return x + s.p(x).relu().sin() * min(1.0, s.step / 100)


def step(model, b):
    if not hasattr(model, "warm"):  # sanity validation pass before training
        with torch.no_grad():
            model.warm = model.layers[0](b["x"])
    x = b["x"].requires_grad_()
    for blk in model.layers:
        x = checkpoint(blk, x, use_reentrant=False)
    x.sum().backward()


class Model(nn.Module):
    def __init__(s, n=2):
        super().__init__()
        s.layers = nn.ModuleList(Block(i) for i in range(n))

    def forward(s, x, **kw):
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    return Model(1), [dict(x=torch.randn(2, 8)) for _ in range(8)]


EXPECT = {
    "kind": "error",
    "block": "layers.*",
    "cause": "ac_recompute_other_graph",
    "guard": ".step == (then recompile_limit), CheckpointError",
    "limit_hit": True,
    "fix": "remove the per-call guard; put checkpoint inside the compiled region; no variant switch between forward and recompute (fixed "
    "shapes / mark_dynamic; LRU off)",
    "also": [
        ("limit_hit", "module_int_attr"),
        ("recompile", "module_int_attr"),
        ("recompile", "grad_mode"),
        ("limit_hit", "grad_mode"),
    ],
}
