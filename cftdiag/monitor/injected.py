"""Starting the monitor in a process that ``cftdiag run`` has launched: called by the injected import hook."""

from __future__ import annotations

import atexit
import json
import sys
from types import TracebackType
from typing import Any

from cftdiag.monitor.monitor import Monitor

_MONITOR: Monitor | None = None


def imported(name: str, settings: str) -> None:
    """``torch`` or ``torch._dynamo`` has been imported; the first starts the monitor, the second lets it see
    compiles begin.
    """
    global _MONITOR
    if name == "torch":
        _MONITOR = start(json.loads(settings))
    elif _MONITOR is not None:
        _MONITOR.dynamo_imported()


def start(settings: dict[str, Any]) -> Monitor:
    """A monitor as ``cftdiag run`` asked for it, until the process ends."""
    sinks = [_sink(name, value) for name, value in (settings.pop("sinks", None) or {}).items()]
    monitor = Monitor(quiet=True, sinks=sinks, **settings)
    monitor.start()
    atexit.register(monitor.close)
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        monitor.failed(error)
        before(kind, error, traceback)

    sys.excepthook = excepthook
    return monitor


def step() -> None:
    """The end of a step, for a loop of ours that has no torch optimizer; nothing where no monitor runs."""
    if _MONITOR is not None:
        _MONITOR.step()


def _sink(name: str, value: Any) -> Any:
    if name == "gate":
        from cftdiag.monitor.gate import Gate

        return Gate(**value)
    from cftdiag.monitor.sinks import LazySink, TensorBoardSink, WandbSink

    if name == "tensorboard":
        return LazySink(lambda: TensorBoardSink(value))
    return LazySink(lambda: WandbSink(project=value))
