"""Every layer compiles separately, limit hit from layer 8 on -> the rest run eager.

Source: pytorch/pytorch#128071; vllm-project/vllm-gaudi#1638; vllm-project/vllm#12410. Cause: block reads
self.layer_idx (int) in forward: per-layer constant guard on a shared code object. Fix: resolve per-layer
values at __init__ (buffer/tensor) or slice outside the block; do not read layer_idx in compiled code
(allow_unspec_int_on_nn_module does not help on 2.13).

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason: s.layer_idx == 0
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.layer_idx = i

    def forward(s, x, ple):
        return x + s.p(x) + ple[:, s.layer_idx]


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
    return Model(12), [dict(x=torch.randn(2, 8), ple=torch.randn(2, 12, 8)) for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.1..8",
    "cause": "layer_idx",
    "guard": ".layer_idx ==",
    "limit_hit": True,
    "fix": "resolve per-layer values at __init__ (buffer/tensor) or slice outside the block; do not read layer_idx in compiled code "
    "(allow_unspec_int_on_nn_module does not help on 2.13)",
}
