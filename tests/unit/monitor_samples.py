"""Events and run directories that the monitor's tests are fed with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cftdiag.details import StepDetail
from cftdiag.events import Code, Event, Guard, Reason
from tests.unit.event_samples import detail as detail_of

CODE = Code(qualname="Block.forward", file="/m/model.py", line=12)


def guard(expected: int = 512, actual: int = 640) -> Guard:
    return Guard(
        expression=f"tensor 'x' size mismatch at index 1. expected {expected}, actual {actual}",
        source="L['x'].size()[1]",
        expected=str(expected),
        actual=str(actual),
        value_type="Tensor",
    )


def event(
    kind: str,
    *,
    step: int = 1,
    rank: int = 0,
    time: float | None = None,
    block: str | None = "layers.0",
    **values: Any,
) -> Event:
    """One event of a block; a recompile gets a guard on its length."""
    if kind in ("recompile", "limit_hit") and "guard" not in values:
        values["guard"] = guard()
        values["reasons"] = (Reason(entry="0/0", guard=values["guard"], closest=True),)
    values.setdefault("compile_id", "0/0" if kind == "compile" else "0/1")
    when = 1000.0 + step if time is None else time
    values["detail"] = detail_of(kind, values.get("detail", {}))
    return Event(
        kind=kind, time=when, rank=rank, step=step, block=block, block_class="Block", code=CODE, **values
    )


def compiled(
    *, step: int = 1, rank: int = 0, seconds: float = 2.0, compile_id: str = "0/0", time: float | None = None
) -> Event:
    """One forward compile."""
    detail = {
        "status": "ok",
        "graphs": 1,
        "arguments": {"x": {"shape": [2, 512, 64], "dtype": "float32", "requires_grad": True}},
    }
    return event(
        "compile",
        step=step,
        rank=rank,
        time=time,
        compile_id=compile_id,
        seconds={"total": seconds},
        detail=detail,
    )


def head(rank: int = 0, world_size: int = 1, **settings: Any) -> Event:
    """The head of a session."""
    facts = {
        "id": f"s{rank}",
        "rank": rank,
        "world_size": world_size,
        "pid": 100 + rank,
        "host": "h",
        "started": 1000.0,
        "argv": ["train.py"],
        "environment": {"torch": "2.13.0", "python": "3.11"},
        "settings": {"warmup_steps": 10, "limit": 8, **settings},
    }
    return Event(kind="step", time=1000.0, rank=rank, detail=StepDetail(session=facts))


def steps(
    first: int,
    seconds: list[float],
    rank: int = 0,
    shapes: list[list[list[int]]] | None = None,
    time: float | None = None,
) -> Event:
    """A batch of steps."""
    detail: dict[str, Any] = {"first": first, "seconds": seconds}
    if shapes is not None:
        detail["shapes"] = shapes
    last = first + len(seconds) - 1
    return Event(
        kind="step",
        time=1000.0 + last if time is None else time,
        rank=rank,
        step=last,
        detail=detail_of("step", detail),
    )


def end(step: int, rank: int = 0, **facts: Any) -> Event:
    """The end of a session."""
    return Event(
        kind="step",
        time=2000.0,
        rank=rank,
        step=step,
        detail=StepDetail(end={"steps": step, "alarms": [], "guards": None, **facts}),
    )


def write_run(
    path: Path, by_rank: Mapping[int, Iterable[Event]], meta: Mapping[str, Any] | None = None
) -> Path:
    """A run directory."""
    (path / "events").mkdir(parents=True)
    (path / "run.json").write_text(
        json.dumps({"schema": "cftdiag.rundir/1", "started": 1000.0, **(meta or {})})
    )
    for rank, events in by_rank.items():
        (path / "events" / f"rank{rank:05d}.jsonl").write_text("".join(e.to_line() + "\n" for e in events))
    return path
