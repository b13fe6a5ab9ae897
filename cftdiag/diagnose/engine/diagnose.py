"""Events to findings."""

from __future__ import annotations

from collections.abc import Sequence

from cftdiag.diagnose.engine import errors, graph_breaks, recompiles
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.draft import Draft, Drafts
from cftdiag.diagnose.engine.miss import History
from cftdiag.events import Event
from cftdiag.findings import SEVERITIES, Finding

_KINDS = ("error", "limit_hit", "numerics", "graph_break", "recompile", "perf")


def diagnose(events: Sequence[Event], context: Context | None = None) -> list[Finding]:
    """What the events mean: one finding per kind, cause and place, the worst first.

    Pure: the same events and context give the same findings, and nothing of torch is needed. ``events`` are
    of the collecting pass (or of a run, of all ranks); those of the fullgraph pass belong in
    ``context.fullgraph_breaks``.
    """
    context = context or Context()
    drafts = Drafts()
    graph_breaks.gather(events, context, drafts)
    recompiles.gather(History(events, context), context, drafts)
    graph_breaks.absorb_recompiles(drafts, context)
    errors.gather(events, context, drafts)
    for draft in drafts.of("recompile"):
        _warn_of_limit(draft, context)
    found = [draft.finding(context) for draft in drafts]
    return sorted(found, key=lambda f: (-SEVERITIES.index(f.severity), _KINDS.index(f.kind), -f.count))


def _warn_of_limit(draft: Draft, context: Context) -> None:
    """Under activation checkpointing the limit is worse than slow: crossed between forward and recomputation
    it raises.
    """
    entries = draft.facts.get("entries")
    if entries:
        draft.notes.append(
            f"Activation checkpointing is on: {entries} of {context.limit} cache entries are used; crossing the limit between a forward and its "
            "recomputation raises a CheckpointError."
        )
