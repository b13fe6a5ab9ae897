"""A scheduler's signal: before the first step it ends the run at once; after that it becomes a flag, the step is
finished and a checkpoint written. Both leave a mark and a code that mean "start me again".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from trainer.lock import in_use

Value = TypeVar("Value")

EXIT_STOPPED = 85
"""Exit code after a signal and a checkpoint; Linux' number of ERESTART, "interrupted, should be restarted".
"""

STOPPED = "stopped.json"
"""In the output directory after a signal, for whoever starts the run: torchrun ends with its own code,
whatever its workers' were.
"""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stop(BaseException):
    """A signal came before the first step. Like Ctrl-C it may come anywhere, and is no error to be handled there."""


class StopSignals:
    """While entered, the first SIGTERM or SIGUSR1 sets :attr:`received`, and within :meth:`starting` it also raises
    :class:`Stop`; the others do nothing. Python lets only the main thread listen; elsewhere it is idle.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the signal that this process got."""
        self.step = 0
        """The step that a next start goes on after, as far as it is known."""
        self.ours = False
        """The lock of the output directory is held by a rank of this run."""
        self._leave = self._begun = False
        self._pid = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """True once a signal came."""
        return self.received is not None

    def starting(self, out: Path, work: Callable[[], Value]) -> Value | None:
        """What ``work`` returns; it is, or begins with, the part of a run before its first step. A signal that comes
        there, or came before, ends it, marks ``out`` and gives None; so does what fails because other ranks left
        for the same reason. May be nested.
        """
        try:
            self._leave = True
            if self.requested():
                raise Stop
            return work()
        except (Stop, Exception) as error:
            if self._begun or not (isinstance(error, Stop) or self.requested()):
                raise
            self._leave = False
            self._mark_start(out)
            return None
        finally:
            self._leave = False

    def hold(self) -> None:
        """From here on a signal is only noted: the ranks agree on what they do."""
        self._leave = False

    def begin(self, anyone: bool) -> None:
        """The first step is next, unless ``anyone`` of the ranks got a signal: then raises :class:`Stop`."""
        if anyone:
            raise Stop
        self._begun = True

    def mark(self, out: Path, step: int) -> None:
        """Write :data:`STOPPED`."""
        (out / STOPPED).write_text(
            json.dumps({"step": step, "signal": self.received}) + "\n", encoding="utf-8"
        )

    def _mark_start(self, out: Path) -> None:
        there = (out / STOPPED).exists()
        if not there or os.environ.get("RANK", "0") == "0":
            who = self.received or "a signal on another rank"
            where = f"step {self.step + 1}" if self.ours else "its first step"
            print(
                f"{who}: stopped before {where}; start again with --resume auto", file=sys.stderr, flush=True
            )
        # A mark of an earlier stop says as much, and after which step; what another run writes into is its own.
        if there or (not self.ours and in_use(out)):
            return
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.mark(out, self.step)
        except OSError as error:
            print(f"warning: no {out / STOPPED}: {error.strerror or error}", file=sys.stderr, flush=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child: one that makes rows lives on for the step that is finished, one of the start ends.
            if self._leave:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        first, self.received = self.received is None, self.received or signal.Signals(number).name
        if first and self._leave:
            raise Stop
