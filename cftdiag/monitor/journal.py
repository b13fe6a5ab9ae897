"""The events file of one rank: a session's head, events at once, steps in batches, a session's end.

Steps are what would make a run directory large, so a line of kind ``step`` stands for several of them:
``step`` is the last one and ``detail`` holds ``{"first": n, "seconds": [...], "shapes": [...]}``, one item a
step. A session starts with ``{"session": {...}}`` and ends with ``{"end": {...}}`` in the ``detail`` of a
step event; a killed process leaves no end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.details import StepDetail
from cftdiag.events import Event
from cftdiag.monitor import rundir

#: A batch of steps is written when it is this old (seconds) or this long: a live view needs no more, the
#: training should pay no more.
FLUSH_S = 1.0
FLUSH_STEPS = 2000

#: Marks a line of an exchange that is a rank's state, not an event.
STATE = "state "


class Journal:
    """What one rank writes down. Never raises; ``warn`` gets the one sentence when writing fails."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        warn: Callable[[str], None],
        copy: Callable[[str], None] | None = None,
    ) -> None:
        self.rank = rank
        self.directory = directory
        self._warn = warn
        self._copy = copy
        self._claim: rundir.Claim | None = None
        self._lines: rundir.Lines | None = None
        self._lost_told = 0
        self._first = 0
        self._seconds: list[float] = []
        self._shapes: list[tuple[tuple[int, int], ...]] = []
        self._flush_at = 0.0
        self._recent = 0.0
        self._state: rundir.State | None = None
        try:
            self._claim = rundir.Claim(directory, rank)
            (directory / rundir.RANKS).mkdir(exist_ok=True)
            self._lines = rundir.Lines(self._claim.path, warn)
        except OSError as error:
            warn(
                f"cannot write the run directory {directory} ({error.strerror or error}); the training goes on, nothing is kept"
            )

    @property
    def path(self) -> Path | None:
        """The events file; None when the directory cannot be written."""
        return self._lines.path if self._lines is not None else None

    def session(self, facts: Mapping[str, Any]) -> None:
        """Write the head of a session."""
        self.note(0, StepDetail(session=dict(facts)))

    def end(self, step: int, facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Write what is pending, the end of the session and the last state, and close the files."""
        self.note(step, StepDetail(end=dict(facts)))
        self.state(state)
        if self._state is not None:
            self._state.close()
        if self._lines is not None:
            self._lines.close()
        if self._claim is not None:
            self._claim.close()

    def event(self, event: Event) -> None:
        """Write one event now, after the steps that came before it."""
        self.flush()
        self._write(event)

    def note(self, step: int, detail: StepDetail) -> None:
        """Write a line of kind ``step`` that stands for no step, such as the compiled modules."""
        self.flush()
        self._write(self._note(step, detail))

    def payload(self, digest: str, text: str) -> None:
        """Keep a text under its hash."""
        if self._lines is None:
            return
        path = self.directory / rundir.PAYLOADS / digest
        try:
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                temporary = path.with_name(f".{digest}.{os.getpid()}")
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
                os.replace(temporary, path)
        except OSError as error:
            self._warn(
                f"cannot write {path} ({error.strerror or error}); the training goes on, graphs are not kept"
            )

    def step(self, step: int, seconds: float, shapes: Sequence[tuple[int, int]], now: float) -> bool:
        """Note one finished step; True when the batch was written. ``now`` is ``time.perf_counter()``."""
        if not self._seconds:
            self._first = step
            if not self._flush_at:
                self._flush_at = now
        self._seconds.append(seconds)
        self._shapes.append(tuple(shapes))
        if now < self._flush_at and len(self._seconds) < FLUSH_STEPS:
            return False
        self._flush_at = now + FLUSH_S
        self.flush()
        return True

    def flush(self) -> None:
        """Write the steps noted so far."""
        if not self._seconds:
            return
        detail = StepDetail(
            first=self._first,
            seconds=tuple(round(s, 6) for s in self._seconds),
            shapes=tuple(self._shapes) if any(self._shapes) else None,
        )
        last = self._first + len(self._seconds) - 1
        self._recent = sum(self._seconds) / len(self._seconds)
        self._seconds, self._shapes = [], []
        self._write(self._note(last, detail))

    def recent(self) -> float:
        """Mean seconds of the steps written last; 0 before the first."""
        return round(self._recent, 6)

    def state(self, facts: Mapping[str, Any]) -> None:
        """Replace what the rank is doing now."""
        if self._lines is None:
            return
        text = json.dumps(facts, separators=(",", ":"), default=str)
        if self._copy is not None:
            self._copy(f"{STATE}{text}\n")
        try:
            if self._state is None:
                self._state = rundir.State(self.directory / rundir.RANKS / f"{self._lines.path.stem}.json")
            self._state.write(text)
        except OSError as error:
            self._warn(
                f"cannot write {self.directory} ({error.strerror or error}); the training goes on, the live view stands still"
            )

    def _note(self, step: int, detail: StepDetail) -> Event:
        return Event(kind="step", time=time.time(), rank=self.rank, step=step, detail=detail)

    def _write(self, event: Event) -> None:
        if self._lines is None:
            return
        line = event.to_line() + "\n"
        if self._copy is not None:
            self._copy(line)
        if self._lines.write(line) and self._lines.lost > self._lost_told:
            lost, self._lost_told = self._lines.lost - self._lost_told, self._lines.lost
            note = dataclasses.replace(self._note(event.step, StepDetail(lost=lost)), time=time.time())
            self._lines.write(note.to_line() + "\n")
