"""Flex-style mask function rebuilt each step -> recompile each step, then eager (memory blow-up).

Source: vllm-project/vllm#27178 (gpt-oss continual pre-training comment), vllm-project/speculators#731. Cause:
a new closure per batch carries a Python list of document ends; its len/values are guards (a plain int cell
turns dynamic on 2.13). Fix: build the mask function once, carry changing state in tensors, pass a BlockMask
built outside.

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason:
  len(mask_fn.__closure__[0].cell_contents) == 1
- torch 2.13.0+cpu: reproduces: yes with a list in the closure (a plain int cell turns dynamic after 1
  recompile)
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x, mask_fn):
        q = s.p(x).unsqueeze(1)
        t = torch.arange(x.shape[1])
        return x + F.scaled_dot_product_attention(q, q, q, attn_mask=mask_fn(t[:, None], t[None])).squeeze(1)


def make(ends):
    def fn(i, j):
        m = i >= j
        for e in ends:
            m = m & ((i < e) == (j < e))
        return m

    return fn


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
    return Model(), [dict(x=torch.randn(2, 24, 8), mask_fn=make(list(range(2, 2 + n)))) for n in range(1, 13)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "closure_identity",
    "guard": "len(mask_fn.__closure__[0].cell_contents) ==",
    "limit_hit": True,
    "fix": "build the mask function once, carry changing state in tensors, pass a BlockMask built outside",
}
