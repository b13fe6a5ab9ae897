"""The check before training. ``cftdiag.check(...)`` runs it: this package can be called.

Importing it imports no torch; the names below are fetched on first use.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

#: Public name -> the module of this package that has it.
_EXPORTS = {
    "CheckOptions": "options",
    "CheckReport": "report",
    "Subject": "subject",
    "InputError": "errors",
    "EnvironmentUnfit": "errors",
    "run_check": "driver",
}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallableModule(types.ModuleType):
    """``cftdiag.check`` is both this package and the public function: importing a submodule must not hide the function."""

    def __call__(self, subject_or_model: Any, batches: Any = None, **options: Any) -> Any:
        from cftdiag.check.driver import check

        return check(subject_or_model, batches, **options)


sys.modules[__name__].__class__ = _CallableModule
