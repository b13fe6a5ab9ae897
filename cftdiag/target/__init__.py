"""Offline devices: Inductor lowers for a GPU that is not there, or for a CPU without a C++ compiler.

Importing this package imports no torch; `backend`, `probe`, `assumptions` and `Lowered` do when they are
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cftdiag.target.devices import DEVICES, TARGETS, Device, device
from cftdiag.target.errors import TargetUnavailable

if TYPE_CHECKING:
    from cftdiag.target.lowering import Lowered, assumptions, backend, probe

_LAZY = ("Lowered", "assumptions", "backend", "probe")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cftdiag.target import lowering

    return getattr(lowering, name)


__all__ = [
    "DEVICES",
    "TARGETS",
    "Device",
    "Lowered",
    "TargetUnavailable",
    "assumptions",
    "backend",
    "device",
    "probe",
]
