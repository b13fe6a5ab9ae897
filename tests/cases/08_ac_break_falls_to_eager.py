"""AC + compile: a single graph break inside the checkpointed block sends the whole block to eager.

Source: pytorch/torchtitan#1895. Cause: graph break inside torch.utils.checkpoint region (higher order op
cannot be resumed) -> frame skipped. Fix: remove the break, or apply compile to sub-modules inside the
checkpoint instead of to the checkpointed block.

Observed:
- torch 2.13.0+cpu: graphs=0; recompiles=0; breaks=Skip calling `torch.compiler.disable()`d function x1
- torch 2.13.0+cpu: fullgraph=True: Unsupported gb0098
"""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


@torch.compiler.disable
def side(x):
    return x * 1.0


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.a = nn.Linear(8, 8)
        s.b = nn.Linear(8, 8)

    def inner(s, x):
        return x + s.b(side(s.a(x)).relu())

    def forward(s, x):
        return checkpoint(s.inner, x, use_reentrant=False)


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
    "cause": "graph_break_in_checkpoint",
    "line": "side(s.a(x))",
    "fix": "remove the break, or apply compile to sub-modules inside the checkpoint instead of to the checkpointed block",
    "also": [("perf", "graph_runs_eager")],
}
