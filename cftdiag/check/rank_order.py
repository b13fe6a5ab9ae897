"""Ranks of a rehearsal held against one another by the collectives that they issued. Torch-free."""

from __future__ import annotations

import dataclasses
import json
import linecache
from collections.abc import Iterable, Mapping
from itertools import combinations, zip_longest
from pathlib import Path

from cftdiag.findings import Finding, Remedy, Where

CAUSE = "rank_divergent_recompile"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One collective of one rank."""

    operator: str
    group: tuple[int, ...]
    """Ranks that take part."""
    elements: int
    step: int
    file: str | None = None
    line: int | None = None

    @property
    def met(self) -> tuple[str, tuple[int, ...], int]:
        """What the other ranks of the group must call at the same place of their order."""
        return self.operator, self.group, self.elements

    def text(self) -> str:
        """``allreduce of 4 elements (train.py:12)``."""
        place = f" ({Path(self.file).name}:{self.line})" if self.file else ""
        size = f" of {self.elements} element{'s' * (self.elements != 1)}" if self.elements else ""
        return f"{self.operator}{size}{place}"


def read(path: Path) -> tuple[Call, ...]:
    """The calls of one rank; a line that a killed process left half written ends them."""
    calls = []
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                operator, group, *rest = json.loads(line)
                calls.append(Call(operator, tuple(group), *rest))
    except (OSError, ValueError):
        pass
    return tuple(calls)


def _code(call: Call) -> str | None:
    return (linecache.getline(call.file, call.line).strip() or None) if call.file and call.line else None


def divergence(calls: Mapping[int, Iterable[Call]], *, ended: bool = True) -> Finding | None:
    """The first collective at which two ranks of one group part; None where all agree.

    ``ended``: every rank came to the same end, so that one whose calls are over early has left the others
    waiting.
    """
    parts: list[tuple[int, int, int, Call | None, Call | None]] = []
    for a, b in combinations(sorted(calls), 2):
        common = [[c for c in calls[rank] if a in c.group and b in c.group] for rank in (a, b)]
        for mine, other in zip_longest(*common):
            if (mine is None or other is None) and not ended:
                break
            if mine is None or other is None or mine.met != other.met:
                step = min(c.step for c in (mine, other) if c is not None)
                parts.append((step, a, b, mine, other))
                break
    if not parts:
        return None
    step, a, b, mine, other = min(parts, key=lambda part: part[:3])
    first = mine or other
    assert first is not None
    words = " while ".join(
        f"rank {rank} calls {call.text() if call else 'nothing more'}"
        for rank, call in ((a, mine), (b, other))
    )
    return Finding(
        kind="error",
        cause=CAUSE,
        severity="error",
        where=Where(file=first.file, line=first.line, code=_code(first)),
        steps=(step,),
        evidence=(f"step {step}: {words}",),
        explanation=(
            f"Ranks call collectives in another order: at step {step} {words}. On real devices they wait for each other "
            "until the process group's timeout."
        ),
        remedies=(
            Remedy(
                summary="Let every rank take the same branch: decide by a value that all ranks share, or reduce it first."
            ),
        ),
        doc=f"docs/causes/{CAUSE}.md",
    )
