"""One checking decorator around the forward of ten block classes.

Source: patrick-kidger/jaxtyping#384 (a decorated forward reaches the recompile limit). Cause: the decorator's inner
function is one code object with one cache; the wrapped function differs by class. Fix: isolate_recompiles=True, a
higher limit, or the decorator outside what is compiled.

Observed:
- torch 2.13.0+cpu: 8 graphs; recompile_limit HIT; first reason: ___check_obj_id(fn.__code__, ...), type=<class 'code'>
"""

import functools

import torch
import torch.nn as nn


def checked(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        out = fn(*args, **kwargs)
        assert out.shape[-1] == 8
        return out

    return inner


class Base(nn.Module):
    def __init__(s):
        super().__init__()
        s.p = nn.Linear(8, 8)


class Sin(Base):
    @checked
    def forward(s, x):
        return x + torch.sin(s.p(x))


class Cos(Base):
    @checked
    def forward(s, x):
        return x + torch.cos(s.p(x))


class Tanh(Base):
    @checked
    def forward(s, x):
        return x + torch.tanh(s.p(x))


class Relu(Base):
    @checked
    def forward(s, x):
        return x + torch.relu(s.p(x))


class Gate(Base):
    @checked
    def forward(s, x):
        return x * torch.sigmoid(s.p(x))


class Exp(Base):
    @checked
    def forward(s, x):
        return x + torch.exp(-s.p(x).abs())


class Soft(Base):
    @checked
    def forward(s, x):
        return x + s.p(x).softmax(-1)


class Plain(Base):
    @checked
    def forward(s, x):
        return x + s.p(x)


class Square(Base):
    @checked
    def forward(s, x):
        return x + s.p(x).square()


class Mean(Base):
    @checked
    def forward(s, x):
        return x + s.p(x.mean(1, keepdim=True))


class Model(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList(c() for c in (Sin, Cos, Tanh, Relu, Gate, Exp, Soft, Plain, Square, Mean))

    def forward(s, x):
        x = x.detach().requires_grad_(torch.is_grad_enabled())
        for b in s.layers:
            x = b(x)
        return x


def build():
    return Model(), [dict(x=torch.randn(2, 4, 8)) for _ in range(2)]


EXPECT = {
    "kind": "recompile",
    "block": "layers.*",
    "cause": "shared_code_object",
    "limit_hit": True,
    "line": "out = fn(*args, **kwargs)",
    "fix": "isolate_recompiles / higher limit / apply the decorator outside the compiled function",
}
