"""Fullgraph block fails: hook on an inner module is torch.compiler.disable'd.

Source: vladmandic/sdnext#4837 with huggingface/accelerate#3888; pytorch/pytorch#181924 (FSDP2 hooks). Cause:
nested wrapper (FSDP2 fully_shard / accelerate hook) on a submodule of the compiled block; its pre-forward
hook is dynamo-disabled. Fix: wrap at block granularity only (hooks stay outside the compiled forward),
compile before wrapping the inner module, or split compile around it.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=0; breaks=Skip calling `torch.compiler.disable()`d function x1
- torch 2.13.0+cpu: fullgraph=True: Unsupported gb0098
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.p.register_forward_pre_hook(torch.compiler.disable(lambda m, a: None))

    def forward(s, x):
        return x + s.p(x).relu()


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
    return Model(), [dict(x=torch.randn(2, 8)) for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "disabled_hook",
    "line": "x + s.p(x)",
    "fix": "wrap at block granularity only (hooks stay outside the compiled forward), compile before wrapping the inner module, or split "
    "compile around it",
}
