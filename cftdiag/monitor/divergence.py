"""Ranks that compile when others do not. Pure: works on the events and steps of all ranks."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cftdiag.diagnose import CAUSES
from cftdiag.events import Event, Guard
from cftdiag.findings import Finding, Where

if TYPE_CHECKING:
    from cftdiag.monitor.run_files import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """One step in which some ranks compiled and others did not."""

    step: int
    ranks: tuple[int, ...]
    """Ranks that compiled."""
    waiting: tuple[int, ...]
    """Ranks that did not."""
    seconds: float
    """Longest compile time of a rank in this step."""
    waited: float
    """Seconds that the waiting ranks lost together."""
    block: str | None
    guard: Guard | None
    batches: dict[int, list[tuple[int, int]]]
    """Rank -> (rows, length) of its batches in this step, where seen."""
    event: Event

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return {
            "step": self.step,
            "ranks": list(self.ranks),
            "waiting": list(self.waiting),
            "seconds": round(self.seconds, 3),
            "waited": round(self.waited, 3),
            "block": self.block,
            "guard": self.guard.expression if self.guard else None,
            "batches": {
                str(rank): [list(shape) for shape in shapes] for rank, shapes in sorted(self.batches.items())
            },
        }


def divergences(events: Iterable[Event], steps: Iterable[Step], ranks: Sequence[int]) -> list[Divergence]:
    """Steps in which a part of the ranks recompiled or hit a limit, in order.

    First compiles count only with a recompile beside them: a rank that holds other layers compiles other
    code. How long a waiting rank waited is the difference between the compile time of the slowest rank and
    its own in that step, but not more than its step took.
    """
    if len(ranks) < 2:
        return []
    found: list[Divergence] = []
    by_step: dict[int, dict[int, list[Event]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for event in events:
        if event.kind in ("compile", "recompile", "limit_hit"):
            by_step[event.step][event.rank].append(event)
    took = {(s.step, s.rank): s for s in steps}
    for step, by_rank in sorted(by_step.items()):
        missed = {rank: [e for e in own if e.kind != "compile"] for rank, own in by_rank.items()}
        hit = tuple(sorted(rank for rank, own in missed.items() if own))
        waiting = tuple(rank for rank in ranks if rank not in hit)
        if not hit or not waiting:
            continue
        compiled = {
            rank: sum(
                e.seconds.get("total", 0.0) + e.seconds.get("backward", 0.0) for e in by_rank.get(rank, [])
            )
            for rank in ranks
        }
        longest = max(compiled[rank] for rank in hit)
        lost = 0.0
        for rank in waiting:
            own = took.get((step, rank))
            lost += min(max(0.0, longest - compiled[rank]), own.seconds if own is not None else longest)
        event = missed[hit[0]][0]
        batches = {
            rank: list(took[step, rank].shapes)
            for rank in ranks
            if (step, rank) in took and took[step, rank].shapes
        }
        found.append(
            Divergence(
                step=step,
                ranks=hit,
                waiting=waiting,
                seconds=longest,
                waited=lost,
                block=event.block,
                guard=event.guard,
                batches=batches,
                event=event,
            )
        )
    return found


def finding(found: Sequence[Divergence]) -> Finding | None:
    """One finding for all divergent steps of a run."""
    if not found:
        return None
    worst = max(found, key=lambda d: d.waited)
    stack = worst.event.stack
    where = Where(**dataclasses.asdict(stack[-1])) if stack else Where()
    return Finding(
        kind="perf",
        cause="rank_divergent_recompile",
        severity="warning",
        blocks=tuple(dict.fromkeys(d.block for d in found if d.block)),
        where=where,
        guard=worst.guard.expression if worst.guard else None,
        count=len(found),
        steps=tuple(d.step for d in found),
        lengths=tuple(
            sorted({length for d in found for rank in d.ranks for _, length in d.batches.get(rank, [])})
        ),
        evidence=tuple(sentence(d) for d in found[:8]),
        explanation=(
            f"In {len(found)} step(s) some ranks compiled while the others waited in their next collective: {sum(d.waited for d in found):.1f} s of "
            "rank time lost. A compile longer than the process group's timeout ends the run."
        ),
        remedies=CAUSES["rank_divergent_recompile"].remedies,
        doc="docs/causes/rank_divergent_recompile.md",
    )


def sentence(d: Divergence) -> str:
    """``step 7: rank 1 compiled model.layers.0 for 2.1 s while ranks 0, 2-3 waited; batch 2 x 48 against 2 x
    32``.
    """
    text = f"step {d.step}: {ranks_text(d.ranks)} compiled {d.block or 'a region'} for {d.seconds:.2f} s while {ranks_text(d.waiting)} waited"
    own = shapes_text(d, d.ranks)
    others = shapes_text(d, d.waiting)
    return f"{text}; batch {own} against {others}" if own and others and own != others else text


def shapes_text(d: Divergence, ranks: Iterable[int]) -> str:
    """Distinct batch shapes of some ranks: ``2 x 48, 2 x 64``."""
    shapes = dict.fromkeys(shape for rank in ranks for shape in d.batches.get(rank, []))
    return ", ".join(f"{rows} x {length}" for rows, length in list(shapes)[:4])


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0, 2-3``."""
    parts: list[str] = []
    i = 0
    while i < len(ranks):
        j = i
        while j + 1 < len(ranks) and ranks[j + 1] == ranks[j] + 1:
            j += 1
        parts.append(str(ranks[i]) if i == j else f"{ranks[i]}-{ranks[j]}")
        i = j + 1
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"
