"""All causes by key, in the order of the families, and the precedence among causes of a miss and of a break."""

from __future__ import annotations

from cftdiag.diagnose.causes import (
    break_in_region,
    break_on_call,
    break_on_value,
    errors,
    global_state,
    kernel_code,
    module_attributes,
    performance,
    python_values,
    sizes,
    tensor_properties,
)
from cftdiag.diagnose.engine.cause import Cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.events import Event

FAMILIES = (
    break_on_value,
    break_on_call,
    break_in_region,
    sizes,
    tensor_properties,
    module_attributes,
    python_values,
    global_state,
    errors,
    performance,
    kernel_code,
)

#: Every cause by its public key.
CAUSES: dict[str, Cause] = {cause.key: cause for family in FAMILIES for cause in family.CAUSES}


#: Regions in which any break has this cause: they run eager as a whole.
REGIONS = ("graph_break_in_checkpoint", "autograd_function")


def of_break(event: Event) -> str:
    """The cause of a graph break: the region it is in, then what value it is about, then what it calls."""
    return break_in_region.classify(event) or of_break_itself(event)


def of_break_itself(event: Event) -> str:
    """The cause of a graph break wherever it is."""
    return break_on_value.classify(event) or break_on_call.classify(event)


def of_miss(miss: Miss) -> str:
    """The cause of a recompile or a limit hit, by its closest guard."""
    for classify in (
        global_state.classify,
        python_values.early,
        sizes.classify,
        tensor_properties.classify,
        module_attributes.classify,
        python_values.classify,
    ):
        found = classify(miss)
        if found is not None:
            return found
    return "generic_guard"
