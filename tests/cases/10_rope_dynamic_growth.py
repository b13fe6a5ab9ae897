"""Long-context rope variant adds graph breaks (4 subgraphs).

Source: huggingface/transformers#35716.
Cause: max position read from a tensor and compared to a Python limit in forward.
Fix: choose the rope table on the host from seq_len before the blocks; precompute cos/sin for max length.

Observed:
- torch 2.13.0+cpu: graphs=2; recompiles=0; break only in the log (counter empty): Data-dependent branching
  Explanation: Detected data-
  dependent branching (e.g. `if my_tensor.sum() > 0:`). Dynamo does no
- torch 2.13.0+cpu: fullgraph=True: Unsupported gb0170
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)
        s.cap = 16
        s.register_buffer("f", torch.ones(8))

    def forward(s, x, pos):
        n = torch.max(pos) + 1
        if n > s.cap:
            f = s.f * 0.5
        else:
            f = s.f
        return x + s.p(x) * torch.cos(pos[:, None] * f)


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
    return Model(), [dict(x=torch.randn(n, 8), pos=torch.arange(n)) for n in (12, 12)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "data_dependent_branch",
    "line": "if n > s.cap:",
    "fix": "choose the rope table on the host from seq_len before the blocks; precompute cos/sin for max length",
}
