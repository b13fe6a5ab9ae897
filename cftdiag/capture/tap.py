"""The live tap: a logging handler on torch's structured trace, and a handler list that keeps torch from
building what nobody reads.

torch builds every record, payload included, as soon as its trace logger has any handler; that is most of a
tap's cost, and a payload that writes out the user's own tensor subclass can end the compile. While taps are the
only handlers, the list is true only for the records they want, so that torch drops the others before building
anything.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from cftdiag.torch_private import trace_log

_lock = threading.Lock()
_found: list[logging.Handler] | None = None
"""The logger's own list, while ours stands in for it."""


class Tap(logging.Handler):
    """Hands wanted records to ``feed(metadata, payload, time)``; drops the rest by their first key.

    ``wanted`` holds record names, ``artifacts`` the names of wanted artifacts; what ``feed`` raises goes to
    ``failed``.
    """

    def __init__(
        self,
        feed: Callable[[dict[str, Any], str | None, float], None],
        failed: Callable[[Exception], None],
        *,
        wanted: frozenset[str],
        artifacts: frozenset[str],
    ) -> None:
        super().__init__(logging.NOTSET)
        self.wanted = wanted
        self._artifacts = artifacts
        self._feed = feed
        self._failed = failed

    def wants(self, name: str, artifact: str | None) -> bool:
        """Whether a record is read; ``artifact`` is the name of one, None where it is not known."""
        return name in self.wanted and (name != "artifact" or artifact is None or artifact in self._artifacts)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging for each record of the trace."""
        try:
            metadata: dict[str, Any] = record.metadata  # type: ignore[attr-defined]
            name = next(iter(metadata), "")
            if not self.wants(name, str(metadata[name].get("name")) if name == "artifact" else None):
                return
            self._feed(metadata, record.payload, record.created)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - logging runs inside the user's compile: nothing of ours may reach it
            self._failed(error)


class _Handlers(list[logging.Handler]):
    """The trace logger's handlers; its truth, which torch asks before it builds a record, depends on the
    record.
    """

    def __bool__(self) -> bool:
        if not all(isinstance(handler, Tap) for handler in self):
            return True
        caller = sys._getframe(1)
        if not trace_log.asks_to_build(caller):
            return len(self) > 0
        name = trace_log.record_asked_for(caller)
        artifact = trace_log.artifact_asked_for(caller) if name == "artifact" else None
        return any(name is None or tap.wants(name, artifact) for tap in self if isinstance(tap, Tap))


def install(tap: Tap) -> None:
    """Add a tap to torch's trace logger."""
    global _found
    logger = trace_log.logger()
    with _lock:
        if not isinstance(logger.handlers, _Handlers):
            _found = logger.handlers
            logger.handlers = _Handlers(_found)
        # First in the list: torch's own handler takes itself off the list during the first record, which
        # makes logging skip the next one.
        logger.handlers.insert(0, tap)


def remove(tap: Tap) -> None:
    """Take a tap off again; with the last one the logger gets its own list back, with what others added or
    removed meanwhile.
    """
    global _found
    logger = logging.getLogger(trace_log.TRACE_LOGGER)
    logger.removeHandler(tap)
    with _lock:
        if _found is not None and not any(isinstance(handler, Tap) for handler in logger.handlers):
            _found[:] = logger.handlers
            logger.handlers, _found = _found, None
