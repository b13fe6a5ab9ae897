"""What the monitor asks of torch beside the events: is a compile under way, how near is a limit, how long
does a collective wait.
"""

from __future__ import annotations

from collections.abc import Callable


class Compiling:
    """Calls ``start(compile id)`` and ``end()`` around the outermost compile of the process; survives
    ``torch._dynamo.reset()`` by :meth:`renew`.
    """

    def __init__(self, start: Callable[[str], None], end: Callable[[], None]) -> None:
        self._start = lambda args: start(str(getattr(args, "compile_id", None) or ""))
        self._end = lambda args: end()

    def renew(self) -> bool:
        """Register the callbacks where they are missing; False when this torch has none."""
        try:
            from torch._dynamo.callback import callback_handler as handler

            if self._start not in handler.start_callbacks:
                handler.register_start_callback(self._start)
            if self._end not in handler.end_callbacks:
                handler.register_end_callback(self._end)
        except (ImportError, AttributeError):
            return False
        return True

    def close(self) -> None:
        """Take the callbacks out again."""
        try:
            from torch._dynamo.callback import callback_handler as handler
        except ImportError:
            return
        for callbacks, own in ((handler.start_callbacks, self._start), (handler.end_callbacks, self._end)):
            if own in callbacks:
                callbacks.remove(own)


def recompile_limit() -> int | None:
    """``recompile_limit`` as this thread sees it; None before Dynamo is imported or where the name is
    another.
    """
    import sys

    dynamo = sys.modules.get("torch._dynamo")
    limit = getattr(getattr(dynamo, "config", None), "recompile_limit", None)
    return limit if isinstance(limit, int) else None


def group_timeout() -> float | None:
    """Seconds after which a collective of the default process group gives up; None without a group or where
    it cannot be read.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            return float(group._get_backend(torch.device(device)).options._timeout.total_seconds())  # type: ignore[union-attr]
        except (RuntimeError, AttributeError):
            continue
    return None
