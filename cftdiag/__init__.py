"""Know before you train whether torch.compile will hold; see the moment it stops holding; know what to
change.

The public names are imported on first use: ``import cftdiag`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cftdiag import check
    from cftdiag.check import CheckReport, Subject
    from cftdiag.monitor import Monitor, load_run
    from cftdiag.plan import load_plan

#: Public name -> the module that has it. ``cftdiag.check`` is the package of that name, which can be called.
_EXPORTS = {
    "CheckReport": "cftdiag.check",
    "Monitor": "cftdiag.monitor",
    "Subject": "cftdiag.check",
    "load_plan": "cftdiag.plan",
    "load_run": "cftdiag.monitor",
}

__all__ = ["CheckReport", "Monitor", "Subject", "__version__", "check", "load_plan", "load_run"]


def __getattr__(name: str) -> Any:
    if name == "check":
        return importlib.import_module("cftdiag.check")
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'cftdiag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
