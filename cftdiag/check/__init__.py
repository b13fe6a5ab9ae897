"""Checking before training. ``cftdiag.check(...)`` is this package, called.

Importing it imports no torch; the passes do, in their own processes.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.errors import CheckError, EnvironmentUnfit, InputError
from cftdiag.options import CheckOptions
from cftdiag.passes.messages import ProgressEvent
from cftdiag.subject import Subject

if TYPE_CHECKING:
    from cftdiag.check.driver import check, run_check

__all__ = [
    "BlockResult",
    "CheckError",
    "CheckOptions",
    "CheckReport",
    "EnvironmentUnfit",
    "InputError",
    "ProgressEvent",
    "Subject",
    "check",
    "run_check",
]

_LAZY = ("check", "run_check")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from cftdiag.check import driver

        return getattr(driver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallablePackage(ModuleType):
    """The package and the public function share one name; importing a submodule must not take the function
    away.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> CheckReport:
        from cftdiag.check.driver import check

        return check(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
