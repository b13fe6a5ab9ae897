"""Dynamic sequence still recompiles (or ConstraintViolation) because of a seq % 8 guard.

Source: pytorch/pytorch#163083, #150403; wochenlong/lora-scripts-next#336.
Cause: padding/alignment branch on a symbolic size adds Eq(Mod(s, 8), 0).
Fix: pad to a multiple of 8 (pad_to_multiple_of) in the collator, or always pad unconditionally in the block.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=1; first reason: (x.size()[1] % 8) == 0
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        n = x.shape[1]
        q = s.p(x).unsqueeze(1)
        b = torch.zeros(n, n)
        if n % 8 != 0:
            b = F.pad(b, (0, 8 - n % 8))[:, :n]
        return x + F.scaled_dot_product_attention(q, q, q, attn_mask=b).squeeze(1)


COMPILE = dict(dynamic=True)


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
    return Model(1), [dict(x=torch.randn(2, n, 8)) for n in (16, 24, 20, 13, 32)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.0",
    "cause": "shape_divisibility",
    "guard": "% 8",
    "fix": "pad to a multiple of 8 (pad_to_multiple_of) in the collator, or always pad unconditionally in the block",
}
