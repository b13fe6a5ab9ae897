"""Training forward cannot be captured fullgraph when a padding mask is passed.

Source: huggingface/transformers#32613, #37944. Cause: Python `if` on torch.all(mask == 1): data-dependent
branch. Fix: decide mask/no-mask on the host in the collator (pass None or a mask consistently), never branch
on mask values in the block.

Observed:
- torch 2.13.0+cpu: graphs=3; recompiles=1; breaks=Unsupported Tensor.item() call with
  capture_scalar_outputs=False x1; first reason:
  ___stack0 == True
- torch 2.13.0+cpu: fullgraph=True: UserError: could not guard on data-dependent Eq(u0, 1)
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x, mask):
        if bool(torch.all(mask == 1)):
            mask = None
        q = s.p(x).unsqueeze(1)
        m = None if mask is None else mask[:, None, None, :].bool()
        return x + F.scaled_dot_product_attention(q, q, q, attn_mask=m, is_causal=m is None).squeeze(1)


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
    pad = torch.ones(2, 6)
    pad[0, 4:] = 0
    return Model(), [dict(x=torch.randn(2, 6, 8), mask=m) for m in (torch.ones(2, 6), pad)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "data_dependent_branch",
    "line": "if bool(torch.all(mask == 1)):",
    "fix": "decide mask/no-mask on the host in the collator (pass None or a mask consistently), never branch on mask values in the block",
}
