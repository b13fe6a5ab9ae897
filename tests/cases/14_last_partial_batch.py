"""Slow step / OOM at the end of the epoch: last batch is smaller.

Source: saforem2/ezpz#190, huggingface/pytorch-image-models#2616, Lightning-AI/litgpt#794.
Cause: drop_last=False gives one ragged batch; batch dim guard fails and the dim turns dynamic.
Fix: drop_last=True or pad the last batch; otherwise mark_dynamic(batch) from step 0.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: tensor 'x' size mismatch at index 0. expected 4,
  actual 3
"""

import torch
import torch.nn as nn


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
        x = x.detach().requires_grad_(torch.is_grad_enabled())  # embedding output
        for b in s.layers:
            x = b(x, **kw)
        return x


def build():
    data = torch.randn(11, 4, 8)
    return Model(), [dict(x=b) for b in torch.utils.data.DataLoader(data, batch_size=4)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.0",
    "cause": "batch_dim",
    "guard": "size mismatch at index 0",
    "fix": "drop_last=True or pad the last batch; otherwise mark_dynamic(batch) from step 0",
}
