"""A run read back: events, steps, ranks, findings, as objects and, where pandas is installed, as data frames.
Imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cftdiag.events import Event
from cftdiag.monitor import rundir


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step of one rank. ``time`` is its end in Unix seconds, ``shapes`` the (rows, length) of
    its batches where they were seen.
    """

    rank: int
    step: int
    seconds: float
    time: float
    shapes: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(kw_only=True, slots=True)
class Session:
    """One process's stretch of a run: its head, how it ended (None when it was killed or still runs), its
    events and steps in order.
    """

    rank: int
    file: str
    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    end: Mapping[str, Any] | None = None
    events: list[Event] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    blocks: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """(name, class) of the compiled modules, where they were found."""
    trained: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Elements of the trained parameters by dtype, where they were seen."""
    lost: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What was read of a run directory, or of a directory of TORCH_TRACE files (then without steps, blocks and
    heads).
    """

    path: Path
    meta: Mapping[str, Any]
    """``run.json``; empty for traces."""
    sessions: tuple[Session, ...]
    live: tuple[Mapping[str, Any], ...] = ()
    """What each rank was doing when it was last heard of."""
    problems: tuple[str, ...] = ()
    """What could not be read."""
    source: str = "run"
    """``run`` or ``trace``."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left events, ascending."""
        return tuple(sorted({s.rank for s in self.sessions}))

    @property
    def world_size(self) -> int:
        """Number of ranks that the run had."""
        return max([int(s.head.get("world_size") or 1) for s in self.sessions] + [len(self.ranks)])

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """All events but steps, of all ranks, by time."""
        return tuple(sorted((e for s in self.sessions for e in s.events), key=lambda e: e.time))

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps of all ranks, by rank and step."""
        return tuple(
            sorted((step for s in self.sessions for step in s.steps), key=lambda s: (s.rank, s.step))
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the monitor, of the first session that has any."""
        return next((s.head["settings"] for s in self.sessions if s.head.get("settings")), {})


def is_run(path: str | os.PathLike[str]) -> bool:
    """True for a run directory and for what TORCH_TRACE writes (a directory with .log files, or one of
    these).
    """
    path = Path(path)
    return _is_rundir(path) or _is_trace(path)


def read_run(path: str | os.PathLike[str]) -> RunFiles:
    """Read a run directory or a TORCH_TRACE directory, finished or not; ``ValueError`` with one line when it
    is neither.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"{path}: no such directory; give a run directory, or a directory that TORCH_TRACE=DIR wrote"
        )
    if _is_rundir(path):
        return _read_rundir(path)
    if _is_trace(path):
        return _read_trace(path)
    raise ValueError(
        f"{path}: neither a run directory (run.json, events/) nor a TORCH_TRACE directory (*.log)"
    )


def _is_rundir(path: Path) -> bool:
    return (path / rundir.EVENTS).is_dir() or (path / rundir.RUN_FILE).is_file()


def _is_trace(path: Path) -> bool:
    return any(path.glob("*.log")) if path.is_dir() else path.suffix == ".log" and path.is_file()


def _read_trace(path: Path) -> RunFiles:
    from cftdiag.capture.trace import read_trace_dir

    by_rank: dict[int, Session] = {}
    for event in read_trace_dir(path):
        by_rank.setdefault(event.rank, Session(rank=event.rank, file=str(path))).events.append(event)
    return RunFiles(
        path=path, meta={}, sessions=tuple(by_rank[rank] for rank in sorted(by_rank)), source="trace"
    )


def _read_rundir(path: Path) -> RunFiles:
    problems: list[str] = []
    sessions: list[Session] = []
    for file in sorted((path / rundir.EVENTS).glob("rank*.jsonl")):
        sessions += _sessions(file, problems)
    live = tuple(
        state
        for file in sorted((path / rundir.RANKS).glob("rank*.json"))
        if (state := rundir.read_json(file)) is not None
    )
    lost = sum(s.lost for s in sessions)
    if lost:
        problems.append(f"{lost} lines could not be written while the run went on")
    return RunFiles(
        path=path,
        meta=rundir.read_json(path / rundir.RUN_FILE) or {},
        sessions=tuple(sessions),
        live=live,
        problems=tuple(problems),
    )


def _sessions(file: Path, problems: list[str]) -> Iterator[Session]:
    """The sessions of one rank's file: a restarted rank appends to it."""
    current: Session | None = None
    for event in read_lines(file, problems):
        note = event.noted if event.kind == "step" else None
        head = note.session if note is not None else None
        if head is not None or current is None:
            if current is not None:
                yield current
            current = Session(rank=event.rank, file=file.name, head=head or {})
        if note is None:
            current.events.append(event)
            continue
        current.end = note.end if note.end is not None else current.end
        current.blocks += note.blocks or ()
        current.trained = note.trained or current.trained
        current.lost += note.lost or 0
        current.steps += steps_of(event)
    if current is not None:
        yield current


def read_lines(file: Path, problems: list[str] | None = None, offset: int = 0) -> Iterator[Event]:
    """Events of a file that may be growing or damaged: a bad line is left out and told in ``problems``, a
    last line without newline waits.
    """
    with open(file, "rb") as stream:
        stream.seek(offset)
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return
            if not line.strip():
                continue
            try:
                yield Event.from_dict(json.loads(line))
            except ValueError as error:
                if problems is not None and len(problems) < 20:
                    problems.append(f"{file.name}:{number}: left out ({error})")


def steps_of(event: Event) -> list[Step]:
    """The steps that one line of kind ``step`` stands for; none for a note."""
    seconds = event.noted.seconds or ()
    shapes = event.noted.shapes or [()] * len(seconds)
    first = event.noted.first or 0
    found: list[Step] = []
    left = float(sum(seconds))
    for i, (took, batch) in enumerate(zip(seconds, shapes, strict=False)):
        left -= took
        found.append(
            Step(rank=event.rank, step=first + i, seconds=took, time=event.time - left, shapes=batch)
        )
    return found
