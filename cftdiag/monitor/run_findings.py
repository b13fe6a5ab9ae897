"""What a run's events mean: each session judged by itself, equal findings of all ranks joined, and what only
several ranks together show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cftdiag.diagnose import Block, Context, Probes, diagnose
from cftdiag.diagnose.engine.probes import SkippedFrame
from cftdiag.events import Event
from cftdiag.findings import SEVERITIES, Finding
from cftdiag.monitor.alarms import NOT_REACHED
from cftdiag.monitor.cache_ranks import partial_hits
from cftdiag.monitor.divergence import divergences, finding, ranks_text
from cftdiag.monitor.event_cause import FirstBatch

if TYPE_CHECKING:
    from cftdiag.monitor.run_files import RunFiles, Session


def findings(run: RunFiles) -> tuple[Finding, ...]:
    """Findings of a run, worst first."""
    joined: dict[tuple[object, ...], tuple[Finding, list[int]]] = {}
    for session in run.sessions:
        # What the monitor found by itself is no exception of torch: the context tells it.
        events = [e for e in session.events if not _not_reached(e)]
        for found in diagnose(events, context(session)):
            key = (found.kind, found.cause, found.where, found.guard if found.where.file is None else None)
            if key in joined:
                before, ranks = joined[key]
                joined[key] = (_join(before, found), [*ranks, session.rank])
            else:
                joined[key] = (found, [session.rank])
    several = len(run.ranks) > 1
    out = [_on_ranks(found, ranks) if several else found for found, ranks in joined.values()]
    there = {name for s in run.sessions for name in s.head.get("torch_settings") or ()}
    diverged = finding(divergences(run.events, run.steps, run.ranks))
    out += [found for found in (diverged, partial_hits(run.events, there)) if found is not None]
    return tuple(sorted(out, key=lambda f: (-SEVERITIES.index(f.severity), f.kind == "perf", -f.count)))


def context(session: Session) -> Context:
    """What is known of one session beside its events."""
    named = dict(session.blocks)
    for event in session.events:
        if event.block is not None and event.kind != "error":
            named.setdefault(event.block, event.block_class or "")
    blocks = tuple(
        Block(fqn=fqn, cls=cls, kind=cls, index=i)
        for i, (fqn, cls) in enumerate(named.items())
        if fqn != "<root>"
    )
    batches = _batches(session)
    checkpointed = any(e.under_checkpoint for e in session.events)
    silent = [e for e in session.events if _not_reached(e)]
    skipped = tuple(
        SkippedFrame(block=e.block, cls=e.block_class, file=e.failed.skipped_file)
        for e in silent
        if e.failed.skipped_file
    )
    return Context(
        blocks=blocks,
        lengths=[length for _, length in batches],
        batch_sizes=[rows for rows, _ in batches],
        # The program decides what it compiles, as with a Subject's wrap: there is no fullgraph pass, every
        # break counts.
        wrap=True,
        ac="full" if checkpointed else "none",
        limit=_limit(session),
        settings=tuple(session.head.get("torch_settings") or ()),
        probes=Probes(
            never_run=tuple(e.block or e.block_class or "?" for e in silent), skipped_frames=skipped
        ),
    )


def _not_reached(event: Event) -> bool:
    """True for what the monitor found by itself."""
    return event.kind == "error" and event.failed.type == NOT_REACHED


def _limit(session: Session) -> int:
    """The limit that was hit, where one was (a program may set it after the monitor has started), else the
    one at the start.
    """
    hit = [e.limited.limit for e in session.events if e.kind == "limit_hit" and e.limited.limit]
    return int(max(hit, default=(session.head.get("settings") or {}).get("limit") or 8))


def _batches(session: Session) -> list[tuple[int, int]]:
    """(rows, length) by step as far as known; a step of which nothing is known repeats the one before it."""
    first = FirstBatch()
    shapes = {
        e.step: shape for e in session.events if e.kind == "compile" and (shape := first.of(e)) is not None
    }
    shapes.update({step.step: step.shapes[-1] for step in session.steps if step.shapes})
    if not shapes:
        return []
    found = []
    known = shapes[min(shapes)]
    for step in range(1, max(shapes) + 1):
        known = shapes.get(step, known)
        found.append(known)
    return found


def _join(a: Finding, b: Finding) -> Finding:
    return dataclasses.replace(
        a,
        severity=max(a.severity, b.severity, key=SEVERITIES.index),
        blocks=_union(a.blocks, b.blocks),
        count=a.count + b.count,
        steps=tuple(sorted(set(a.steps) | set(b.steps))),
        lengths=tuple(sorted(set(a.lengths) | set(b.lengths))),
        evidence=_union(a.evidence, b.evidence)[:12],
    )


def _on_ranks(found: Finding, ranks: list[int]) -> Finding:
    return dataclasses.replace(found, evidence=(f"on {ranks_text(sorted(set(ranks)))}", *found.evidence))


def _union(a: Iterable[str], b: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*a, *b)))
