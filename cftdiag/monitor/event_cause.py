"""The cause of one event while the run goes on."""

from __future__ import annotations

import collections
import dataclasses

from cftdiag.details import TensorArgument
from cftdiag.events import Code, Event
from cftdiag.findings import Finding

#: Events that have a cause of their own, and those that a later one is understood by.
TOLD = frozenset({"graph_break", "recompile", "limit_hit", "error"})
KEPT = TOLD | {"compile"}


class LiveDiagnosis:
    """Names the cause and the first remedy of each break, recompile, limit hit and error as it comes.

    Judges by the last ``keep`` events of the rank; the report judges again with all of them, of all ranks.
    """

    def __init__(self, keep: int = 200) -> None:
        self._events: collections.deque[Event] = collections.deque(maxlen=keep)

    def explain(self, event: Event) -> Event:
        """The event with ``cause`` and ``remedy`` (a sentence or None) in its detail; kinds without a cause
        come back as they are.
        """
        if event.kind in KEPT:
            self._events.append(event)
        if event.kind not in TOLD or event.detail.cause is not None:
            return event
        finding = self._finding(event)
        if finding is None:
            return event
        remedy = finding.remedies[0].summary if finding.remedies else None
        detail = dataclasses.replace(event.detail, cause=finding.cause, remedy=remedy)
        return dataclasses.replace(event, detail=detail)

    def _finding(self, event: Event) -> Finding | None:
        from cftdiag.diagnose import Context, diagnose

        # Events of the same kind on other code would bring findings of their own: only this code's history
        # explains this event.
        related = [
            e
            for e in self._events
            if e is event or (e.kind in ("compile", event.kind) and e.code == event.code)
        ]
        found = [f for f in diagnose(related, Context()) if f.kind == event.kind]
        guard = event.guard.expression if event.guard else None
        same = next((f for f in found if matches(f, event, guard)), None)
        if same is not None or len(found) < 2:
            return same or next(iter(found), None)
        # A finding words a guard by the parameter's name. The event without the others of its kind says which.
        alone = [e for e in related if e is event or e.kind == "compile"]
        cause = next((f.cause for f in diagnose(alone, Context()) if f.kind == event.kind), None)
        return next((f for f in found if f.cause == cause), found[0])


def matches(finding: Finding, event: Event, guard: str | None) -> bool:
    """Whether a finding is about this event: its step among the finding's, or the same guard text or line."""
    if finding.kind != event.kind:
        return False
    if guard is not None and finding.guard == guard:
        return True
    line = event.stack[-1].line if event.stack else None
    return event.kind == "graph_break" and line is not None and finding.where.line == line


def argument_shape(event: Event) -> tuple[int, int] | None:
    """(rows, length) of the first argument of two dimensions or more of the frame that an event is about.

    Activations of that length may have more rows: position ids are often one row for all.
    """
    shapes = [
        value.shape
        for value in event.arguments.values()
        if isinstance(value, TensorArgument) and len(value.shape) >= 2
    ]
    if not shapes:
        return None
    length = int(shapes[0][1])
    rows = max(int(s[0]) for s in shapes if s is shapes[0] or (len(s) == 3 and s[1] == shapes[0][1]))
    return rows, length


class FirstBatch:
    """The batch of a compile in the first step, in which no call is watched yet: what its block was called with.

    Code that the block calls across a break has arguments of its own, which are no batch.
    """

    def __init__(self) -> None:
        self._by_block: dict[str | None, tuple[Code | None, tuple[int, int] | None]] = {}

    def of(self, event: Event) -> tuple[int, int] | None:
        """(rows, length), or None where no argument shows it."""
        outer, batch = self._by_block.get(event.block, (event.code, None))
        if outer != event.code:
            return batch
        shape = argument_shape(event) or batch
        if event.kind == "compile":
            self._by_block[event.block] = (event.code, shape)
        return shape
