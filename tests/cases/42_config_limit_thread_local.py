"""FailOnRecompileLimitHit at step 0 although recompile_limit was raised.

Source: unslothai/unsloth#6825 (torch >= 2.12). Cause: torch._dynamo.config overrides are thread-local since
2.12; worker/autograd threads see the default 8. Fix: set the limit through torch.compile(...,
recompile_limit=) / env or set it inside the thread; better: remove the per-call constant.

Observed:
- torch 2.13.0+cpu: graphs=8; recompiles=8; recompile_limit HIT; first reason: k == 0; raises
  FailOnRecompileLimitHit: Hard failure due to
  fullgraph=True
"""

import threading

import torch
import torch.nn as nn

TABLE = {k: k + 0.5 for k in range(64)}


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.p = nn.Linear(8, 8)

    def forward(s, x, k):
        return x + s.p(x) * TABLE[k]


COMPILE = dict(fullgraph=True)


def wrap(model):
    torch._dynamo.config.recompile_limit = 64
    for b in model.layers:
        b.compile(backend="aot_eager", fullgraph=True)


def step(model, b):
    err = []

    def run():
        try:
            model(**b).sum().backward()
        except Exception as e:  # noqa: BLE001 - raised again in the caller
            err.append(e)

    t = threading.Thread(target=run)
    t.start()
    t.join()
    if err:
        raise err[0]


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
    return Model(1), [dict(x=torch.randn(2, 8), k=k) for k in range(12)]


EXPECT = {
    "kind": "error",
    "block": "layers.*",
    "cause": "limit_not_visible_in_thread",
    "guard": "recompile_limit default in worker thread",
    "fix": "set the limit through torch.compile(..., recompile_limit=) / env or set it inside the thread; better: remove the per-call constant",
    "also": [
        ("limit_hit", "int_arg"),
        ("recompile", "int_arg"),
        ("limit_hit", "closure_identity"),
        ("error", "fullgraph_error"),
    ],
}
