"""Recording what torch.compile does: the only part, with :mod:`cftdiag.target`, that touches private names of
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cftdiag.capture.graph_counts import counting, surround, track
    from cftdiag.capture.recorder import Recorder

__all__ = ["Recorder", "counting", "surround", "track"]

_HOME = {
    "Recorder": "recorder",
    "counting": "graph_counts",
    "surround": "graph_counts",
    "track": "graph_counts",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `cftdiag.capture.trace` reads recorded traces without torch being imported.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"cftdiag.capture.{_HOME[name]}"), name)
