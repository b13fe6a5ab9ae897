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


class _Scalars:
    """Counts events, and writes scalars at most once a second and after each event."""

    every_s = 1.0

    def __init__(self) -> None:
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
            self._write(step, self._scalars(seconds))

    def alarm(self, alarm: Alarm) -> None:
        """Alarms are texts; the scalars show what set them off."""

    def close(self) -> None:
        """Write what came after the last scalars."""
        if self._changed:
            self._write(self._last[0], self._scalars(self._last[1]))

    def _scalars(self, seconds: float) -> dict[str, float]:
        return {
            "cftdiag/step_seconds": seconds,
            "cftdiag/compile_seconds": self._compile_s,
            "cftdiag/recompiles": self._counts["recompile"],
            "cftdiag/graph_breaks": self._counts["graph_break"],
            "cftdiag/limit_hits": self._counts["limit_hit"],
        }

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        raise NotImplementedError


class TensorBoardSink(_Scalars):
    """Scalars and alarm texts for TensorBoard in ``log_dir``; ``ValueError`` without the tensorboard package."""

    def __init__(self, log_dir: str) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "TensorBoard scalars need the package tensorboard; pip install tensorboard"
            ) from error
        self._writer = SummaryWriter(log_dir)

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def alarm(self, alarm: Alarm) -> None:
        """Keep the alarm as a text."""
        self._writer.add_text(f"cftdiag/{alarm.kind}", alarm.message, alarm.step)

    def close(self) -> None:
        """Write and close the files."""
        super().close()
        self._writer.close()


class WandbSink(_Scalars):
    """Scalars and alarms for Weights & Biases: into ``run``, the run that the script has open, or a new one
    made with ``init`` (``mode="offline"``).

    Values go under their own step axis (``cftdiag/step``), so that the script's own logging keeps its steps.
    ``ValueError`` without the package.
    """

    def __init__(self, run: Any = None, **init: Any) -> None:
        super().__init__()
        try:
            import wandb
        except ImportError as error:
            raise ValueError("W&B logging needs the package wandb; pip install wandb") from error
        self._own = run is None and wandb.run is None
        self._run = run or wandb.run or wandb.init(**init)
        self._run.define_metric("cftdiag/*", step_metric="cftdiag/step")

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        # No commit: the row goes out with the script's own next one, or at the end.
        self._run.log({**scalars, "cftdiag/step": step}, commit=self._own)

    def alarm(self, alarm: Alarm) -> None:
        """Raise a W&B alert, which reaches people by mail or Slack."""
        self._run.alert(title=f"cftdiag: {alarm.kind}", text=alarm.message)

    def close(self) -> None:
        """Finish the run if it is ours."""
        super().close()
        if self._own:
            self._run.finish()


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
