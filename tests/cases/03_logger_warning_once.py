"""GRPO/SFT with torch_compile raises Unsupported: logger call in the model forward.

Source: huggingface/trl#3839. Cause: logging.Logger method (library warning_once helper) called inside the
traced region. Fix: move the warning out of forward (emit at __init__/config time) or add the function to
torch._dynamo.config.ignore_logging_functions / reorderable_logging_functions.

Observed:
- torch 2.13.0+cpu: graphs=1; recompiles=0; breaks=logging.Logger method not supported for non-export cases x1
- torch 2.13.0+cpu: fullgraph=True: Unsupported gb0291
"""

import functools
import logging

import torch
import torch.nn as nn

log = logging.getLogger("toy")
log.addHandler(logging.NullHandler())
log.propagate = False


@functools.lru_cache(None)
def warn_once(msg):
    log.warning(msg)


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        if s.training:
            warn_once("train mode uses the slow attention path")
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
    return Model(), [dict(x=torch.randn(2, 8)) for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "logging_call",
    "line": "log.warning(...)",
    "fix": "move the warning out of forward (emit at __init__/config time) or add the function to "
    "torch._dynamo.config.ignore_logging_functions / reorderable_logging_functions",
}
