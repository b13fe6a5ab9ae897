"""Watching a run while it trains: every recompile, on every rank, the moment it happens.

The public names are imported on first use; reading a run (:func:`load_run`, :func:`report`) imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cftdiag.monitor.alarms import Alarm
    from cftdiag.monitor.hf import MonitorCallback
    from cftdiag.monitor.monitor import Monitor, MonitorAlarm
    from cftdiag.monitor.recorded_run import Run, load_run, report
    from cftdiag.monitor.run_files import is_run

__all__ = ["Alarm", "Monitor", "MonitorAlarm", "MonitorCallback", "Run", "is_run", "load_run", "report"]

_HOME = {
    "Alarm": "alarms",
    "Monitor": "monitor",
    "MonitorAlarm": "monitor",
    "MonitorCallback": "hf",
    "Run": "recorded_run",
    "is_run": "run_files",
    "load_run": "recorded_run",
    "report": "recorded_run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cftdiag.monitor.{_HOME[name]}"), name)
