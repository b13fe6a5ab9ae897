"""Where a monitor's facts go beside the run directory. A sink that raises is left out from then on.

Scalars, once a second at most: ``cftdiag/step_seconds``, ``cftdiag/compile_seconds`` (cumulated),
``cftdiag/recompiles``, ``cftdiag/graph_breaks``, ``cftdiag/limit_hits`` (cumulated counts of this rank), all
against the optimizer step.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from cftdiag.events import Event
from cftdiag.monitor import process_info
from cftdiag.monitor.alarms import Alarm, why
from cftdiag.monitor.trackers import TensorBoard, Tracker, Wandb


class Sink(Protocol):
    """What a monitor calls, always from the thread that trains or compiles."""

    def event(self, event: Event) -> None:
        """One event, steps left out."""

    def step(self, step: int, seconds: float) -> None:
        """A step has ended; called each step, so it must cost next to nothing."""

    def alarm(self, alarm: Alarm) -> None:
        """An alarm was set off."""

    def close(self) -> None:
        """The monitor ends."""


class TrackerSink:
    """Counts events, and writes scalars to a tracker: at most once a second and after each event."""

    every_s = 1.0

    def __init__(self, tracker: Tracker, *, shared: bool = False) -> None:
        """A ``shared`` tracker is also written to, and closed, by somebody else."""
        self._tracker, self._shared = tracker, shared
        self._counts: collections.Counter[str] = collections.Counter()
        self._compile_s = 0.0
        self._next = 0.0
        self._changed = False
        self._last: tuple[int, float] = (0, 0.0)

    def event(self, event: Event) -> None:
        """Count one event."""
        self._counts[event.kind] += 1
        if event.kind == "compile":
            self._compile_s += event.seconds.get("total", 0.0) + event.seconds.get("backward", 0.0)
        self._changed = True

    def step(self, step: int, seconds: float) -> None:
        """Write the scalars of this step if it is time."""
        self._last = (step, seconds)
        now = time.monotonic()
        if self._changed or now >= self._next:
            self._next, self._changed = now + self.every_s, False
            self._write(step, seconds)

    def alarm(self, alarm: Alarm) -> None:
        """Pass the alarm on: a text in TensorBoard, an alert of W&B."""
        self._tracker.alert(alarm.kind, alarm.message, alarm.step)

    def close(self) -> None:
        """Write what came after the last scalars."""
        if self._changed:
            self._write(*self._last)
        if not self._shared:
            self._tracker.close()

    def _write(self, step: int, seconds: float) -> None:
        scalars = {
            "cftdiag/step_seconds": seconds,
            "cftdiag/compile_seconds": self._compile_s,
            "cftdiag/recompiles": self._counts["recompile"],
            "cftdiag/graph_breaks": self._counts["graph_break"],
            "cftdiag/limit_hits": self._counts["limit_hit"],
        }
        self._tracker.log(step, scalars, axis="cftdiag/step", commit=not self._shared)


class TensorBoardSink(TrackerSink):
    """Scalars and alarm texts for TensorBoard in ``log_dir``; ``ValueError`` without the tensorboard package."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(TensorBoard(log_dir))


class WandbSink(TrackerSink):
    """Scalars and alarms for Weights & Biases: into ``run``, the run that the script has open, or a new one
    made with ``init`` (``mode="offline"``). ``ValueError`` without the package.
    """

    def __init__(self, run: Any = None, **init: Any) -> None:
        super().__init__(Wandb(run, **init))


class LazySink:
    """A sink that is made at its first event or step: a process that trains nothing opens no tracker. Rank 0
    only.
    """

    def __init__(self, make: Callable[[], Sink]) -> None:
        self._make = make
        self._sink: Sink | None = None

    def event(self, event: Event) -> None:
        """Pass on an event."""
        if (sink := self._made()) is not None:
            sink.event(event)

    def step(self, step: int, seconds: float) -> None:
        """Pass on a step."""
        if (sink := self._made()) is not None:
            sink.step(step, seconds)

    def alarm(self, alarm: Alarm) -> None:
        """Pass on an alarm."""
        if (sink := self._made()) is not None:
            sink.alarm(alarm)

    def close(self) -> None:
        """Close the sink if it was made."""
        if self._sink is not None:
            self._sink.close()

    def _made(self) -> Sink | None:
        if self._sink is None and process_info.rank() == 0:
            self._sink = self._make()
        return self._sink


class LoggingSink:
    """Each break, recompile, limit hit and alarm as a record of a Python logger."""

    def __init__(self, logger: logging.Logger | str = "cftdiag.events", level: int = logging.INFO) -> None:
        self._log = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level

    def event(self, event: Event) -> None:
        """Log one event."""
        if event.kind in ("graph_break", "recompile", "limit_hit", "error"):
            self._log.log(
                self._level,
                "rank %d step %d: %s of %s: %s",
                event.rank,
                event.step,
                event.kind,
                event.block or "?",
                why(event),
            )

    def step(self, step: int, seconds: float) -> None:
        """Steps are not logged."""

    def alarm(self, alarm: Alarm) -> None:
        """Log an alarm as a warning."""
        self._log.warning("rank %d step %d: %s: %s", alarm.rank, alarm.step, alarm.kind, alarm.message)

    def close(self) -> None:
        """Nothing to close."""
