"""A scheduler's signal becomes a flag: the step is finished, a checkpoint written, and the process leaves
with a code that means "start me again".
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

EXIT_STOPPED = 85
"""Exit code after a signal and a checkpoint; Linux' number of ERESTART, "interrupted, should be restarted".
"""

STOPPED = "stopped.json"
"""In the output directory after a signal, for whoever starts the run: torchrun ends with its own code,
whatever its workers' were.
"""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """While entered, SIGTERM and SIGUSR1 set :attr:`received` and do nothing else. Python lets only the main
    thread listen; elsewhere it is idle.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the signal that this process got."""
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

    def mark(self, out: Path, step: int) -> None:
        """Write :data:`STOPPED`."""
        (out / STOPPED).write_text(
            json.dumps({"step": step, "signal": self.received}) + "\n", encoding="utf-8"
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
