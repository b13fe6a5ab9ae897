"""What the monitor asks of torch beside the events: is a compile under way?"""

from __future__ import annotations

from collections.abc import Callable

from cftdiag.torch_private import callbacks
from cftdiag.torch_private.names import TorchLacks


class Compiling:
    """Calls ``start(compile id)`` and ``end()`` around the outermost compile of the process; survives
    ``torch._dynamo.reset()`` by :meth:`renew`.
    """

    def __init__(self, start: Callable[[str], None], end: Callable[[], None]) -> None:
        self._start: callbacks.Callback = lambda args: start(callbacks.compile_id(args))
        self._end: callbacks.Callback = lambda args: end()

    def renew(self) -> bool:
        """Register the callbacks where they are missing; False when this torch has none."""
        try:
            callbacks.register(self._start, self._end)
        except TorchLacks:
            return False
        return True

    def close(self) -> None:
        """Take the callbacks out again."""
        try:
            callbacks.unregister(self._start, self._end)
        except TorchLacks:
            return
