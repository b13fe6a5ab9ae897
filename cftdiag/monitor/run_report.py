"""The report of a run: schema ``cftdiag.run/1``. Pure once the run is read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.details import plain
from cftdiag.error_text import shorten
from cftdiag.events import Event
from cftdiag.findings import Finding, verdict
from cftdiag.monitor.alarms import Rules
from cftdiag.monitor.divergence import divergences
from cftdiag.monitor.run_files import RunFiles, Session

SCHEMA = "cftdiag.run/1"


def to_dict(run: RunFiles, findings: Sequence[Finding], *, eager_s: float | None = None) -> dict[str, Any]:
    """The report of a run that was read."""
    events = run.events
    compiles = [e for e in events if e.kind == "compile"]
    problems = list(run.problems)
    if not compiles:
        problems.append(
            "nothing was compiled"
            if run.sessions
            else "no rank left an event: nothing was compiled, or the processes were not watched"
        )
    # A finding's severity decides, as in a check; without a compile there is nothing to judge.
    word = verdict(findings) if compiles or findings else "error"
    head = next((s.head for s in run.sessions if s.head), {})
    found = {
        "schema": SCHEMA,
        "verdict": word,
        "source": {
            "path": str(run.path),
            "kind": run.source,
            "command": run.meta.get("command") or head.get("argv"),
        },
        "environment": dict(head.get("environment") or run.meta.get("environment") or {}),
        "settings": dict(run.settings),
        "started": run.meta.get("started") or head.get("started"),
        "ended": {key: run.meta[key] for key in ("ended", "exit_code", "signal") if key in run.meta} or None,
        "ranks": len(run.ranks),
        "world_size": run.world_size,
        "steps": max((s.step for s in run.steps), default=0),
        "by_rank": [_rank(run, rank) for rank in run.ranks],
        "compiles": [_row(run, e, findings) for e in compiles],
        "recompiles": [_row(run, e, findings) for e in events if e.kind == "recompile"],
        "graph_breaks": [_row(run, e, findings) for e in events if e.kind == "graph_break"],
        "limit_hits": [_row(run, e, findings) for e in events if e.kind == "limit_hit"],
        "errors": [_row(run, e, findings) for e in events if e.kind == "error"],
        "findings": [f.to_dict() for f in findings],
        "alarms": [a for s in run.sessions for a in alarms(s)],
        "divergence": [d.to_dict() for d in divergences(events, run.steps, run.ranks)],
        "timing": timing(run, eager_s),
        "guards": [
            {"rank": s.rank, **s.end["guards"]} for s in run.sessions if s.end and s.end.get("guards")
        ],
        "caches": [_lookup(e) for e in events if e.kind == "cache"],
        "problems": problems,
    }
    return _plain(found)


def _plain(value: Any) -> Any:
    """The same with lists for tuples: what a reader of the JSON sees."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def alarms(session: Session) -> list[dict[str, Any]]:
    """The alarms of a session: what it noted at its end, else (it was killed) what its rules say about its
    events.
    """
    if session.end is not None and "alarms" in session.end:
        return list(session.end["alarms"])
    if not session.head:
        return []
    rules = Rules.of(session.head.get("settings") or {})
    return [alarm.to_dict() for event in session.events for alarm in rules.feed(event)]


def compile_seconds(event: Event) -> float:
    """Seconds of one compile event, forward or backward."""
    return event.seconds.get("total", 0.0) + event.seconds.get("backward", 0.0)


def steady_seconds(run: RunFiles) -> float | None:
    """Median seconds of the steps in which nothing was compiled, the first left out; None without such steps."""
    busy = {(e.rank, e.step) for e in run.events if e.kind != "cache"}
    steps = [s.seconds for s in run.steps if s.step > 1 and (s.rank, s.step) not in busy]
    return statistics.median(steps) if steps else None


def timing(run: RunFiles, eager_s: float | None = None) -> dict[str, Any]:
    """Where the time went, in seconds. ``compile_s`` is the slowest rank's; ``waited_s`` what other ranks
    lost to it.
    """
    per_rank = {rank: sum(compile_seconds(e) for e in run.events if e.rank == rank) for rank in run.ranks}
    first = {
        rank: sum(compile_seconds(e) for e in run.events if e.rank == rank and e.step <= 1)
        for rank in run.ranks
    }
    waited = sum(d.waited for d in divergences(run.events, run.steps, run.ranks))
    steady = steady_seconds(run)
    compile_s = max(per_rank.values(), default=0.0)
    found: dict[str, Any] = {
        "wall_s": _round(
            max((sum(s.seconds for s in run.steps if s.rank == rank) for rank in run.ranks), default=0.0)
        ),
        "compile_s": _round(compile_s),
        "first_step_compile_s": _round(max(first.values(), default=0.0)),
        "waited_s": _round(waited),
        "steady_step_s": None if steady is None else round(steady, 6),
        "eager_step_s": eager_s if eager_s is not None else run.settings.get("eager_step_s"),
        "break_even_step": None,
    }
    eager = found["eager_step_s"]
    if eager is not None and steady is not None:
        # Compile time is paid back by what each steady step saves.
        found["break_even_step"] = int(compile_s / (eager - steady)) + 1 if eager > steady else None
        found["speedup"] = round(eager / steady, 3) if steady > 0 else None
    return found


def _rank(run: RunFiles, rank: int) -> dict[str, Any]:
    sessions = [s for s in run.sessions if s.rank == rank]
    last = sessions[-1]
    live = next((state for state in run.live if state.get("id") == last.head.get("id")), {})
    events = [e for s in sessions for e in s.events]
    return {
        "rank": rank,
        "host": last.head.get("host"),
        "pid": last.head.get("pid"),
        "sessions": len(sessions),
        "steps": max((s.step for x in sessions for s in x.steps), default=0),
        "ended": last.end is not None,
        "last_seen": live.get("time") or max((s.time for s in last.steps), default=None),
        "compile_s": _round(sum(compile_seconds(e) for e in events)),
        "compiles": sum(e.counts_as_compile for e in events),
        **{
            f"{kind}s": sum(e.kind == kind for e in events)
            for kind in ("recompile", "graph_break", "limit_hit", "error")
        },
    }


def _row(run: RunFiles, event: Event, findings: Sequence[Finding]) -> dict[str, Any]:
    where = event.stack[-1] if event.stack else None
    detail = event.detail
    row: dict[str, Any] = {
        "rank": event.rank,
        "step": event.step,
        "time": event.time,
        "compile_id": event.compile_id,
        "block": event.block,
        "class": event.block_class,
        "code": event.code.qualname if event.code else None,
        "cause": detail.cause or _cause(event, findings),
        "batch": None if detail.batch is None else list(detail.batch),
        "seconds": _seconds(run, event),
        "guard": event.guard.expression if event.guard else None,
        "where": {"file": where.file, "line": where.line, "function": where.function, "code": where.code}
        if where
        else None,
        "remedy": detail.remedy,
    }
    if event.kind == "compile":
        row.update(
            region=event.region,
            status=event.compiled.status,
            phases=dict(event.seconds),
            graphs=event.compiled.graphs,
        )
    elif event.kind == "recompile":
        row.update(
            arguments=plain(event.missed.arguments),
            changed=plain(event.missed.changed),
            planned=detail.planned,
            entries=event.missed.entries,
        )
    elif event.kind == "graph_break":
        row.update(gb_id=event.broke.gb_id, reason=event.broke.reason)
    elif event.kind == "limit_hit":
        row.update(limit=event.limited.limit, limit_kind=event.limited.limit_kind)
    elif event.kind == "error":
        row.update(type=event.failed.type, message=shorten(event.failed.message, 500))
    return row


def _lookup(event: Event) -> dict[str, Any]:
    """A lookup in a compile cache."""
    found = event.cached
    return {
        "rank": event.rank,
        "step": event.step,
        "compile_id": event.compile_id,
        "block": event.block,
        "cache": found.cache,
        "outcome": found.outcome,
        "reason": found.reason,
        "nearest": found.nearest,
        "differs": None if found.differs is None else list(found.differs),
        "parts": None if found.parts is None else dict(found.parts),
    }


def _cause(event: Event, findings: Sequence[Finding]) -> str | None:
    """The cause of an event that was not judged live (a recorded trace): that of the finding that is about
    it.
    """
    from cftdiag.monitor.event_cause import matches

    if event.kind == "compile":
        return None
    guard = event.guard.expression if event.guard else None
    same = [f for f in findings if f.kind == event.kind]
    found = next((f for f in same if matches(f, event, guard)), None) or next(
        (f for f in same if event.step in f.steps), None
    )
    return found.cause if found else None


def _seconds(run: RunFiles, event: Event) -> float | None:
    """Seconds of the compile that an event belongs to; of a compile event its own."""
    if event.kind == "compile":
        return _round(compile_seconds(event))
    if event.kind != "recompile":
        return None
    own = [e for e in _compiles_of(run, event.rank, event.compile_id) if e.time >= event.time]
    return _round(sum(compile_seconds(e) for e in own[:2])) if own else None


def _compiles_of(run: RunFiles, rank: int, compile_id: str | None) -> Sequence[Event]:
    return [e for e in run.events if e.kind == "compile" and e.rank == rank and e.compile_id == compile_id]


def _round(seconds: float) -> float:
    return round(seconds, 4)
