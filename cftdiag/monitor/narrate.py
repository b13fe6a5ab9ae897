"""What ``cftdiag run`` says on stderr while the command runs: one line an event, ranks joined."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from cftdiag.cache_keys import missed_key
from cftdiag.error_text import shorten
from cftdiag.escape import escaped
from cftdiag.events import Event
from cftdiag.monitor.alarms import Rules, why
from cftdiag.monitor.divergence import ranks_text
from cftdiag.monitor.event_cause import TOLD
from cftdiag.monitor.follow import Tail

#: Seconds that an event waits for the same one of the other ranks before it is told; told at once when all
#: have it.
JOIN_S = 2.0
_CACHES = {"fx_graph": "FX graph", "aotautograd": "AOTAutograd"}
#: Lines told at most; what comes after is counted.
MAX_LINES = 200
#: Compiles whose cache lookups are told; the report has all.
MAX_LOOKUPS = 40


class Narrator:
    """Tells new events of all ranks; alarms are told with the event that set them off."""

    def __init__(self, directory: Path, *, quiet: bool = False) -> None:
        self._directory = directory
        self._quiet = quiet
        self._tail = Tail(directory)
        self._rules: dict[int, Rules] = {}
        self._waiting: dict[tuple[Any, ...], tuple[float, list[Event], list[str]]] = {}
        self._ranks: set[int] = set()
        self._compiles: set[tuple[Any, ...]] = set()
        self._counts: dict[str, int] = {}
        self._lines = 0

    def start(self) -> None:
        """Say where the run is kept."""
        self._print(f"run directory {self._directory}")

    def poll(self) -> None:
        """Read what is new and tell what has waited long enough."""
        self._read()
        self._tell(time.monotonic() - JOIN_S)

    def end(self, returncode: int) -> None:
        """Tell the rest, and how to read more."""
        self._read()
        self._tell(float("inf"))
        if not self._ranks:
            self._print(
                "no process of the command compiled anything or took an optimizer step: nothing was recorded (python -I and -E cannot be watched)"
            )
            return
        parts = [
            f"{n} {noun if n == 1 else noun + 's'}"
            for kind, noun in _NOUNS
            if (n := self._counts.get(kind, 0))
        ]
        if self._lines > MAX_LINES:
            parts.append(f"{self._lines - MAX_LINES} lines not shown")
        self._print(
            f"{ranks_text(sorted(self._ranks))}: {', '.join(parts) or 'nothing compiled'}; cftdiag report {self._directory}"
        )

    def _read(self) -> None:
        news = self._tail.read()
        for head in news.heads:
            self._ranks.add(int(head["rank"]))
            self._rules[int(head["rank"])] = Rules.of(head.get("settings") or {})
        for event in news.events:
            if event.kind != "compile" or event.counts_as_compile:
                self._counts[event.kind] = self._counts.get(event.kind, 0) + 1
            alarms = self._rules.setdefault(event.rank, Rules()).feed(event)
            shouts = [a.message for a in alarms if a.kind in ("limit_near", "compile_budget")]
            late = any(a.kind == "recompile_after_warmup" for a in alarms)
            unplanned = any(a.kind == "unplanned_recompile" for a in alarms)
            if event.kind == "cache":
                key: tuple[Any, ...] = (event.step, event.kind, event.block, event.compile_id)
                self._compiles.add(key)
                if len(self._compiles) <= MAX_LOOKUPS:
                    self._waiting.setdefault(key, (time.monotonic(), [], []))[1].append(event)
                continue
            if event.kind not in TOLD and not shouts:
                continue
            marks = [
                *(["after warm-up"] if late else []),
                *(["not in the plan"] if unplanned else []),
                *shouts,
            ]
            key = (
                event.step,
                event.kind,
                event.block,
                event.code,
                event.detail.cause,
                event.guard and event.guard.expression,
            )
            _, events, said = self._waiting.setdefault(key, (time.monotonic(), [], []))
            events.append(event)
            said += [mark for mark in marks if mark not in said]

    def _tell(self, before: float) -> None:
        for key, (since, events, marks) in list(self._waiting.items()):
            # the lookups of one compile come one after the other: of them the last is never known
            whole = events[0].kind != "cache" and {e.rank for e in events} >= self._ranks
            if since <= before or whole:
                del self._waiting[key]
                self._line(_lookups(events) if events[0].kind == "cache" else _told(events), marks)

    def _line(self, text: str, marks: list[str]) -> None:
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._print(f"{text}{''.join(f' [{mark}]' for mark in marks)}")

    def _print(self, text: str) -> None:
        if not self._quiet:
            try:
                print(f"cftdiag: {escaped(' '.join(text.split()))}", file=sys.stderr, flush=True)
            except OSError:
                self._quiet = True  # the terminal has gone; the command may still have its own output


_NOUNS = (
    ("compile", "compile"),
    ("recompile", "recompile"),
    ("graph_break", "graph break"),
    ("limit_hit", "limit hit"),
    ("error", "error"),
)


def _told(events: list[Event]) -> str:
    """One event of several ranks."""
    event = events[0]
    facts = [
        f"step {event.step}",
        ranks_text(sorted({e.rank for e in events})),
        f"{event.kind} of {event.block or (event.code.qualname if event.code else '?')}",
    ]
    if batch := event.detail.batch:
        facts.append(f"batch {' x '.join(map(str, batch))}")
    said = why(event) if event.kind in TOLD else ""
    if event.kind == "error" and not event.detail.cause:
        said = f"{event.failed.type}: {shorten(' '.join(event.failed.message.split()), 200)}"
    return f"{', '.join(facts)}: {said}"


def _lookups(events: list[Event]) -> str:
    """What the compile caches answered to one compile, on all its ranks."""
    first = events[0]
    ranks = ranks_text(sorted({e.rank for e in events}))
    answers: dict[str, list[Event]] = {}
    for event in events:
        cache = _CACHES.get(event.cached.cache or "", event.cached.cache)
        answers.setdefault(f"{cache} cache {event.cached.outcome}", []).append(event)
    parts = [f"{count} x {text}" if (count := len(found)) > 1 else text for text, found in answers.items()]
    near = next((e.cached for e in events if e.cached.nearest is not None), None)
    if near is not None:
        parts.append(missed_key({"nearest": near.nearest, "differs": near.differs}))
    return (
        f"step {first.step}, {ranks}, compile {first.compile_id} of {first.block or '?'}: {', '.join(parts)}"
    )
