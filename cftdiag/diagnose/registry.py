"""All causes by key, in the order of the families, and the precedence among causes of a miss and of a break."""

from __future__ import annotations

from cftdiag.diagnose import attributes, calls, errors, generated, performance, regions, scalars, shapes, state, tensors, values
from cftdiag.diagnose.cause import Cause
from cftdiag.diagnose.miss import Miss
from cftdiag.events import Event

FAMILIES = (scalars, calls, regions, shapes, tensors, attributes, values, state, errors, performance, generated)

#: Every cause by its public key.
CAUSES: dict[str, Cause] = {cause.key: cause for family in FAMILIES for cause in family.CAUSES}


def of_break(event: Event) -> str:
    """The cause of a graph break: the region it is in, then what value it is about, then what it calls."""
    return regions.classify(event) or scalars.classify(event) or calls.classify(event)


def of_miss(miss: Miss) -> str:
    """The cause of a recompile or a limit hit, by its closest guard."""
    for classify in (state.classify, values.early, shapes.classify, tensors.classify, attributes.classify, values.classify):
        found = classify(miss)
        if found is not None:
            return found
    return "generic_guard"
