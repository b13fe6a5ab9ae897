"""Inductor's code for a device that is not there: generated, described, never built and never run."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable
from typing import Any


def keep_code(on_code: Callable[[Any, str], None] | None) -> Callable[[Any], Any]:
    """Replacement of ``GraphLowering._compile_to_module``: generates the code, hands ``(graph lowering,
    text)`` to ``on_code``, builds nothing.
    """

    def _compile_to_module(self: Any) -> types.ModuleType:
        generated = self.codegen()[0]
        text = generated if isinstance(generated, str) else generated.value
        if on_code is not None:
            on_code(self, text)
        self.cache_key, self.cache_path, self.cache_linemap = hashlib.sha1(text.encode()).hexdigest(), "", []
        module = types.ModuleType("not_built_" + self.cache_key[:8])
        module.__file__ = module.__name__ + ".py"
        module.key, module.call = self.cache_key, never  # type: ignore[attr-defined]
        return module

    return _compile_to_module


def never(*args: Any, **kwargs: Any) -> Any:
    """Stands where code of the target would be built or run."""
    raise AssertionError("code generated for an offline target was run or built")
