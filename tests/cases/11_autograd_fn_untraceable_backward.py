"""Custom fused op (autograd.Function) falls out of the graph or its backward stays eager.

Source: linkedin/Liger-Kernel#174, pytorch/pytorch#125489. Cause: autograd.Function whose backward is not
traceable (host reads, python side effects, data_ptr). Fix: torch.library.custom_op with
register_autograd/register_fake (or triton_op); keep only traceable code in forward/backward.

Observed:
- torch 2.13.0+cpu: graphs=3; recompiles=0; breaks=Unsupported Tensor.item() call with
  capture_scalar_outputs=False x1
- torch 2.13.0+cpu: fullgraph=True: captured
"""

import torch
import torch.nn as nn


class ScaleFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        amax = float(g.abs().max())  # host-side loss-scale statistic
        return g * w, (g * x).sum(0).clamp(-amax * 1e3, amax * 1e3)


class Block(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.w = nn.Parameter(torch.ones(8))
        s.p = nn.Linear(8, 8)

    def forward(s, x):
        return x + ScaleFn.apply(s.p(x), s.w)


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
    return Model(), [dict(x=torch.randn(4, 8)) for _ in range(2)]


EXPECT = {
    "kind": "graph_break",
    "block": "layers.*",
    "cause": "autograd_function",
    "line": "ScaleFn.apply(x, s.w)",
    "fix": "torch.library.custom_op with register_autograd/register_fake (or triton_op); keep only traceable code in forward/backward",
}
