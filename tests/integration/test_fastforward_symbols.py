"""Run-time values of symbolic sizes."""

import pytest
import torch
import torch._dynamo as dynamo
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cftdiag.fastforward import EVENTS, STATS, fast_forward, reset
from cftdiag.fastforward.symbols import Binder, Values, expr_of


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    reset()
    torch.set_num_threads(1)


def symbols(**examples):
    """SymInts s0, s1, ... with the given example values, and a fake mode."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode, list(mode.from_tensor(torch.empty(*examples.values()), static_shapes=False).shape)


def bind(mode, traced, actual, wanted):
    env = Binder(traced, {expr_of(w) for w in wanted})(actual)
    value = Values(mode.shape_env)
    return [value(w, env) for w in wanted]


def test_linear():
    mode, (s0, s1) = symbols(a=13, b=17)
    with mode:
        t = torch.empty(8 * s0, s0 * s1 + 3)
    assert bind(mode, [t], [torch.empty(80, 10 * 6 + 3)], [s0, s1, s0 * s1]) == [10, 6, 60]
    assert not EVENTS


def test_product_as_a_whole():
    mode, (s0, s1) = symbols(a=13, b=17)
    with mode:
        t = torch.empty(s0 * s1, 4)
    assert bind(mode, [t], [torch.empty(77, 4)], [s0 * s1, s0 * s1 * 4]) == [77, 308]
    assert not EVENTS


def test_example_is_last_and_noted():
    mode, (s0, s1) = symbols(a=13, b=17)
    with mode:
        t = torch.empty(s0 * s1, 4)
    assert bind(mode, [t], [torch.empty(77, 4)], [s1]) == [17]
    assert [n.what for n in EVENTS] == ["hint"]


def test_unbacked_symbol_nobody_defines_gets_a_value_in_its_range():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    u0 = mode.shape_env.create_unbacked_symint()
    torch._check(u0 >= 16)
    assert Values(mode.shape_env)(u0, {}) == 16
    assert [n.what for n in EVENTS] == ["hint"]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 40), torch.nn.Linear(40, 16)

    def forward(self, x):
        y = x.reshape(-1, 16)
        y = self.b(torch.relu(self.a(y)) * torch.sigmoid(y.sum(-1, keepdim=True)))
        return y.reshape(x.shape) + x


@pytest.mark.parametrize("checkpoint", [False, True])
def test_flattened_batch(checkpoint):
    """Saved activations are (batch*length, width); both change without a recompile; gradients have the right
    shape.
    """
    block = Block()
    if checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        block = checkpoint_wrapper(block, preserve_rng_state=False)
    block.compile(backend=fast_forward, dynamic=True, fullgraph=True)
    for shape in ((3, 21, 16), (5, 33, 16), (7, 50, 16)):
        x = torch.zeros(shape, requires_grad=True)
        y = block(x)
        assert y.shape == x.shape
        y.sum().backward()
        assert x.grad.shape == x.shape
    assert STATS["fwd"] == STATS["bwd"] == 1
    assert not EVENTS
