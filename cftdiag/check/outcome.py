"""What one run gave, in the terms in which two runs are compared: what compiled at which step, what broke,
what was trained. Pure and torch-free.

Causes have no part in it: the same step can compile again under another name, and then nothing is gained.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from cftdiag.events import Event
from cftdiag.findings import SEVERITIES, Finding, covers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compile:
    """One graph of a forward region: a code object, which blocks of one class share. ``again`` is False for
    the region's first graph of the run.
    """

    step: int
    region: str
    block: str | None
    again: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run, judged."""

    findings: tuple[Finding, ...]
    compiled: tuple[Compile, ...] = ()
    ended: bool = True
    """False for a timeout, a crash or an exception in the step."""
    ran: frozenset[str] = frozenset()
    """Blocks that ran a graph."""
    trained: frozenset[str] | None = None
    """Parameters that got a gradient; None where that is not known."""

    @property
    def compiles(self) -> int:
        """Graphs of forward regions."""
        return len(self.compiled)

    def meets(self, finding: Finding) -> bool:
        """True when this run met what ``finding`` is about, under whatever name."""
        return self.count(finding) > 0

    def count(self, finding: Finding, before: Outcome | None = None) -> int:
        """How often this run met what ``finding`` is about: compiles at its steps for a recompile, breaks at
        its line for a break, else findings of its kind and cause. ``before`` is the run that the finding is
        of, where that is another one.
        """
        if finding.kind == "recompile":
            return len(self.compiled_again(finding, before))
        alike = [f for f in self.findings if identity(f) == identity(finding) and f.severity != "info"]
        return sum(f.count for f in alike)

    def compiled_again(self, finding: Finding, before: Outcome | None = None) -> list[int]:
        """Steps of the compiles that a recompile is about, one for each compile."""
        # without its break a block compiles other code than before
        regions = self.regions(finding) | (before or self).regions(finding)
        steps = set(finding.steps)
        return [
            c.step
            for c in self.compiled
            if c.again and c.region in regions and (not steps or c.step in steps)
        ]

    def regions(self, finding: Finding) -> frozenset[str]:
        """Code that the finding's blocks compile."""
        return frozenset(c.region for c in self.compiled if _covered(c.block, finding.blocks))

    def per_step(self, *, until: int | None = None) -> Counter[int]:
        """Compiles by step; ``until`` leaves out that step and what follows it."""
        return Counter(c.step for c in self.compiled if until is None or c.step < until)

    def figures(self, finding: Finding, before: Outcome | None = None) -> dict[str, Any]:
        """JSON-ready figures beside a remedy."""
        return {"count": self.count(finding, before), "compiles": self.compiles}


def compiled(events: Iterable[Event]) -> tuple[Compile, ...]:
    """The graphs of forward regions, in order."""
    seen: set[str] = set()
    rows = []
    for event in events:
        if not is_compile(event):
            continue
        region = _region(event)
        rows.append(Compile(step=event.step, region=region, block=event.block, again=region in seen))
        seen.add(region)
    return tuple(rows)


def is_compile(event: Event) -> bool:
    """True for a graph of a forward region that came out."""
    return event.counts_as_compile


def _region(event: Event) -> str:
    code = event.code
    if code is None:
        return event.block or "?"
    return f"{code.file}:{code.line} {code.qualname}"


def identity(finding: Finding) -> tuple[Any, ...]:
    """What makes two findings of different runs the same one: a break or a limit is where it is, whatever is
    said of its cause.
    """
    where = finding.where
    if finding.kind in ("graph_break", "limit_hit") and where.file is not None:
        return finding.kind, where.file, where.line
    return finding.kind, finding.cause


def removed(finding: Finding, before: Outcome, after: Outcome) -> bool:
    """True when ``after`` shows that the change removed ``finding`` and did no harm.

    The step that compiled no longer compiles, or the break, error or limit is gone; the run ended and compiled
    every block that it did before; no step compiles more; nothing else of that severity appeared; the same
    parameters are trained; and where numbers were compared they are equal.
    """
    return why_not(finding, before, after) is None


def why_not(finding: Finding, before: Outcome, after: Outcome) -> str | None:
    """Why ``after`` does not show that the change removed ``finding``; None where it does."""
    if not before.meets(finding):
        return "not met without the change"
    found = harm(finding, before, after)
    if found is not None or not after.count(finding, before):
        return found
    if finding.kind != "recompile":
        return "it is still there"
    steps = sorted(after.compiled_again(finding, before))
    return f"step {steps[0]} still compiles"


def harm(finding: Finding, before: Outcome, after: Outcome) -> str | None:
    """Why a run with a change proves nothing for ``finding``; None where it does."""
    if not after.ended:
        return "the step did not end"
    if not after.ran or not before.ran <= after.ran:
        return "a block that was compiled no longer is"
    # a limit stops the compiling: what a mended run compiles from there on is what the limit kept away
    until = min(finding.steps, default=0) or None if finding.kind == "limit_hit" else None
    more = after.per_step(until=until) - before.per_step(until=until)
    if more:
        return f"step {min(more)} compiles more"
    if before.trained is not None and after.trained is not None and before.trained != after.trained:
        return "other parameters get gradients"
    known = {identity(f) for f in before.findings}
    floor = SEVERITIES.index(finding.severity)
    for other in after.findings:
        if other.kind == "recompile":
            continue  # told by the compiles themselves, not by their names
        if SEVERITIES.index(other.severity) >= floor and identity(other) not in known:
            return f"{other.cause} appears"
    return None


def _covered(block: str | None, patterns: tuple[str, ...]) -> bool:
    return not patterns or (block is not None and any(covers(p, block) for p in patterns))
