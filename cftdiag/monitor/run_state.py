"""What ``cftdiag watch`` knows of a run: a model of its present state, fed by the run directory. Knows no
terminal.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.events import Event
from cftdiag.monitor import rundir
from cftdiag.monitor.divergence import ranks_text
from cftdiag.monitor.event_cause import TOLD
from cftdiag.monitor.follow import Tail
from cftdiag.plan import Plan, load_plan

#: Events shown, newest last.
LAST = 12
#: A rank that said nothing for so long (seconds) while others compile is waiting for them.
SILENT_S = 2.0
#: Steps over which the rate is taken.
RATE_STEPS = 50


@dataclasses.dataclass(slots=True)
class RankView:
    """One rank as it is now. Times are Unix seconds."""

    rank: int
    host: str = ""
    step: int = 0
    heard: float = 0.0
    compiling: Mapping[str, Any] | None = None
    ended: bool = False
    timeout: float | None = None
    recent: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=RATE_STEPS)
    )
    recompiles: int = 0
    compile_s: float = 0.0
    busy: set[int] = dataclasses.field(default_factory=set)

    @property
    def steps_per_s(self) -> float | None:
        """Steps a second, by the median of the last steps."""
        return (
            1.0 / statistics.median(self.recent)
            if self.recent and statistics.median(self.recent) > 0
            else None
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Ranks that wait for others' compiles, since when, and how far the process group's timeout is (None when
    unknown).
    """

    ranks: tuple[int, ...]
    compiling: tuple[int, ...]
    since: float
    timeout_in: float | None

    def sentence(self, now: float) -> str:
        """``ranks 0, 2-3 wait for rank 1, 12 s; the process group gives up in 588 s``."""
        verb = "waits" if len(self.ranks) == 1 else "wait"
        waited = f"{max(0.0, now - self.since):.0f} s"
        text = f"{ranks_text(self.ranks)} {verb} for {ranks_text(self.compiling)}, {waited}"
        return (
            text
            if self.timeout_in is None
            else f"{text}; the process group gives up in {max(0.0, self.timeout_in):.0f} s"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """What the run's plan says of the steps to come: the compiles that it foresees, {step, regime, cause} each, in their
    order, and the regimes that no rank has compiled so far, of how many.
    """

    compiles: tuple[Mapping[str, Any], ...]
    uncompiled: tuple[str, ...]
    regimes: int

    def sentence(self) -> str:
        """``next by the plan: step 120, seq_len in regime R3; 2 more after it``."""
        if self.compiles:
            first, more = self.compiles[0], len(self.compiles) - 1
            text = f"next by the plan: step {first['step']}, {first['cause']} in regime {first['regime']}"
            return text + (f"; {more} more after it" if more else "")
        if self.uncompiled:
            return f"by the plan these regimes still compile when the data comes to them: {', '.join(self.uncompiled)}"
        return f"by the plan nothing compiles any more: all {self.regimes} regimes have been"


class View:
    """Feed with :meth:`refresh`, read the attributes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.meta: Mapping[str, Any] = {}
        self.ranks: dict[int, RankView] = {}
        self.last: collections.deque[tuple[Event, set[int]]] = collections.deque(maxlen=LAST)
        self.blocks: dict[str, collections.Counter[str]] = {}
        """Block -> number of events by kind; a block that shares another's compiled code stays at zero."""
        self.classes: dict[str, str] = {}
        self.started: float | None = None
        """When the first rank began, Unix seconds."""
        self._plan: Plan | None = None
        self._compiled_shapes: set[tuple[int, int]] = set()
        self._tail = Tail(directory)

    def refresh(self) -> None:
        """Read what is new."""
        self.meta = rundir.read_json(self.directory / rundir.RUN_FILE) or self.meta
        news = self._tail.read()
        for head in news.heads:
            view = self._rank(int(head["rank"]))
            view.host, view.ended = str(head.get("host") or ""), False
            view.recent.clear()
            self._begin(head)
        for name, cls in news.blocks:
            self.blocks.setdefault(name, collections.Counter())
            self.classes[name] = cls
        for event in news.events:
            self._event(event)
        for step in news.steps:
            view = self._rank(step.rank)
            view.step = step.step
            view.heard = max(view.heard, step.time)
            if step.step not in view.busy:
                view.recent.append(step.seconds)
            view.busy.discard(step.step)
        for state in self._tail.states():
            view = self._rank(int(state.get("rank") or 0))
            view.compiling, view.ended = state.get("compiling"), bool(state.get("ended"))
            view.timeout = state.get("group_timeout")
            view.step = max(view.step, int(state.get("step") or 0)) if not view.busy else view.step
            view.heard = max(view.heard, float(state.get("time") or 0.0))

    @property
    def finished(self) -> bool:
        """True when the launcher has noted the end, or every rank has."""
        return "ended" in self.meta or bool(self.ranks) and all(view.ended for view in self.ranks.values())

    def waiting(self, now: float | None = None) -> Waiting | None:
        """Who waits for whom: some rank compiles, others of the run do not and have been silent."""
        now = time.time() if now is None else now
        compiling = {rank: view for rank, view in self.ranks.items() if view.compiling and not view.ended}
        silent = {
            rank: v
            for rank, v in self.ranks.items()
            if not v.compiling and not v.ended and now - v.heard > SILENT_S
        }
        if not compiling or not silent:
            return None
        since = max(
            min(float(v.compiling["since"]) for v in compiling.values() if v.compiling),
            min(v.heard for v in silent.values()),
        )
        timeouts = [v.timeout for v in silent.values() if v.timeout]
        left = min(timeouts) - (now - since) if timeouts else None
        return Waiting(tuple(sorted(silent)), tuple(sorted(compiling)), since, left)

    def lost(self) -> tuple[float, float] | None:
        """(seconds that compiling took on the rank where it took most, seconds since the start); None before
        anything compiled.
        """
        seconds = max((view.compile_s for view in self.ranks.values()), default=0.0)
        if not seconds or self.started is None:
            return None
        return seconds, max(seconds, max(view.heard for view in self.ranks.values()) - self.started)

    def ahead(self) -> Ahead | None:
        """What comes next by the plan that the run is held against; None without one."""
        if self._plan is None:
            return None
        step = max((view.step for view in self.ranks.values()), default=0)
        coming = sorted(
            (c for c in self._plan.forecast if int(c.get("step") or 0) > step), key=lambda c: int(c["step"])
        )
        compiled = {self._plan.regime_of(*shape) for shape in self._compiled_shapes}
        names = tuple(dict.fromkeys(regime.id for regime in self._plan.regimes))
        return Ahead(tuple(coming), tuple(name for name in names if name not in compiled), len(names))

    def _begin(self, head: Mapping[str, Any]) -> None:
        began = float(head.get("started") or 0.0)
        self.started = began if self.started is None else min(self.started, began)
        plan = (head.get("settings") or {}).get("plan")
        if plan and self._plan is None:
            with contextlib.suppress(ValueError):  # moved or changed since: the run itself has said so
                self._plan = load_plan(str(plan))

    def block_rows(self) -> list[tuple[str, Sequence[str], collections.Counter[str]]]:
        """(class, names, counts) of blocks that fared alike."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, counts in self.blocks.items():
            groups.setdefault((self.classes.get(name, "module"), tuple(sorted(counts.items()))), []).append(
                name
            )
        return [(cls, names, collections.Counter(dict(counts))) for (cls, counts), names in groups.items()]

    def _rank(self, rank: int) -> RankView:
        return self.ranks.setdefault(rank, RankView(rank))

    def _event(self, event: Event) -> None:
        view = self._rank(event.rank)
        view.heard = max(view.heard, event.time)
        if event.kind == "compile":
            view.compile_s += event.seconds.get("total", 0.0) + event.seconds.get("backward", 0.0)
        if event.kind in ("compile", "recompile"):
            view.busy.add(event.step)
            if event.detail.batch is not None:
                self._compiled_shapes.add(event.detail.batch)
        view.recompiles += event.kind == "recompile"
        if event.block is not None:
            counts = self.blocks.setdefault(event.block, collections.Counter())
            if event.kind != "compile" or event.counts_as_compile:
                counts[event.kind] += 1
            self.classes.setdefault(event.block, event.block_class or "module")
        if event.kind not in TOLD:
            return
        for known, ranks in self.last:
            if (known.kind, known.step, known.block, known.code, known.guard) == (
                event.kind,
                event.step,
                event.block,
                event.code,
                event.guard,
            ):
                ranks.add(event.rank)
                return
        self.last.append((event, {event.rank}))
