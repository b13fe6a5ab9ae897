"""Which of our frames Dynamo is told to leave alone."""

from __future__ import annotations

import contextlib
import functools
import types

import pytest

from cftdiag.capture import untraced
from cftdiag.capture.untraced import codes


def _module() -> types.ModuleType:
    module = types.ModuleType("ours")
    module.__file__ = __file__

    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            return function()

        return wrapper

    def outer():
        def inner():
            return lambda: None

        return inner

    def wrapped():
        return None

    class Mode:
        def method(self):
            return None

        @classmethod
        def made(cls):
            return None

        @property
        def value(self):
            return None

    def foreign():
        return None

    @contextlib.contextmanager
    def context():
        yield

    # what runs when it is called is contextlib's code, which the user's context managers run too
    context.__module__ = "ours"
    module.context = context
    module.outer, module.wrapped, module.Mode, module.foreign = outer, decorate(wrapped), Mode, foreign
    outer.__module__ = module.wrapped.__module__ = Mode.__module__ = "ours"
    return module


def test_every_function_of_a_module_and_no_other() -> None:
    names = sorted(code.co_name for code in codes(_module()))
    assert names == sorted(
        ["outer", "inner", "<lambda>", "wrapper", "wrapped", "Mode.method"[5:], "made", "value", "context"]
    )
    assert not any(code.co_filename == contextlib.__file__ for code in codes(_module()))


def test_what_records_and_what_rehearses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import cftdiag.rehearse.training
    from cftdiag.capture import Recorder, blocks
    from cftdiag.torch_private import dynamo

    left: list[types.CodeType] = []
    monkeypatch.setattr(untraced, "_known", set())
    monkeypatch.setattr(dynamo, "skip_code", left.append)
    with Recorder():
        assert {blocks.strip.__code__, cftdiag.rehearse.training.install.__code__} <= set(left)


def test_a_finding_that_names_our_code_fails_whatever_test_makes_it() -> None:
    from cftdiag.findings import Finding, Where

    ours = Where(file="/x/site-packages/cftdiag/fastforward/host_reads.py", line=1)
    with pytest.raises(AssertionError, match="names our own code"):
        Finding(kind="graph_break", cause="tensor.item", severity="error", where=ours)
