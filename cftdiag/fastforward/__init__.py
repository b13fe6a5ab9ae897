"""Fast-forward: run a training step where only what steers Python is computed, without weights.

Compiled regions go through `fast_forward` (or `trace_only`), everything around them runs under `SkipMode`;
`EVENTS` says what was made up.
"""

from cftdiag.fastforward.assumed_values import ROUTING_POLICIES, numbers_from, routing_policy
from cftdiag.fastforward.assumptions import EVENTS, Note, undetermined
from cftdiag.fastforward.backend import DEPTHS, backend_for, boxed, copied, fast_forward, trace_only
from cftdiag.fastforward.graph import STATS, Graph
from cftdiag.fastforward.provenance import ASSUMED, REAL, SKIPPED, mark, mark_weights, status
from cftdiag.fastforward.skip_mode import SkipMode


def reset() -> None:
    """Forget all notes and counts of this process."""
    EVENTS.clear()
    STATS.clear()


__all__ = [
    "ASSUMED",
    "DEPTHS",
    "EVENTS",
    "REAL",
    "ROUTING_POLICIES",
    "SKIPPED",
    "STATS",
    "Graph",
    "Note",
    "SkipMode",
    "backend_for",
    "boxed",
    "copied",
    "fast_forward",
    "mark",
    "mark_weights",
    "numbers_from",
    "reset",
    "routing_policy",
    "status",
    "trace_only",
    "undetermined",
]  # fmt: skip
