"""Which of our frames Dynamo is told to leave alone."""

from __future__ import annotations

import functools
import types

from cftdiag.capture.untraced import codes


def _module() -> types.ModuleType:
    module = types.ModuleType("ours")

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

    module.outer, module.wrapped, module.Mode, module.foreign = outer, decorate(wrapped), Mode, foreign
    outer.__module__ = module.wrapped.__module__ = Mode.__module__ = "ours"
    return module


def test_every_function_of_a_module_and_no_other() -> None:
    names = sorted(code.co_name for code in codes(_module()))
    assert names == sorted(
        ["outer", "inner", "<lambda>", "wrapper", "wrapped", "Mode.method"[5:], "made", "value"]
    )
