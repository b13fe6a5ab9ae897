"""Remedies that depend on what the guarded value is and on what holds it: a module, a plain object, a container, torch's own
layer.
"""

from __future__ import annotations

import re

from cftdiag import guards
from cftdiag.conditions import Code
from cftdiag.diagnose.causes import sizes
from cftdiag.diagnose.engine import places
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

_NUMBERS = ("module_int_attr", "module_float_attr")
_FROZEN = (
    Remedy(
        summary="Freeze and unfreeze parameters before the first compiled call, and leave them: each set of trained parameters "
        "is a variant of its own."
    ),
    Remedy(
        summary="Where training has phases: compile anew for each (torch.compiler.reset()), or warm each of them up."
    ),
)


def takes_a_buffer(miss: Miss) -> bool:
    """True for an attribute of a module that the program's own code reads: a buffer can stand in its place."""
    return not _of_object(miss) and not _read_by_torch(miss)


def own(miss: Miss, cause: str) -> tuple[tuple[Remedy, ...], bool]:
    """Remedies of this miss, to go before those of its cause, and whether they stand for them."""
    attribute, source = guards.pretty(miss.guard.source), miss.guard.source
    if cause in _NUMBERS and _of_object(miss):
        held = (
            f"Hold {attribute} in a tensor that is changed in place ({attribute}.fill_(value)), and compute what depends "
            "on it with tensor operators."
        )
        return (Remedy(summary=held),), False
    if cause == "global_value" and isinstance(miss.guard.expected, (str, bytes)):
        # no tensor holds a text
        once = (
            f"Read {attribute} once, where the script begins or the module is built, and keep what it decides; where it changes in "
            "a run, each value is a variant."
        )
        return (Remedy(summary=once),), True
    if cause == "module_float_attr" and _read_by_torch(miss) and len(miss.history.values(miss)) > 2:
        return (
            Remedy(
                summary=f"torch reads {attribute} as a constant, so that each value is a graph of its own: change it in few "
                "steps, or write the layer with tensors (a dropout: x * (torch.rand_like(x) >= p) / (1 - p), p a tensor)."
            ),
        ), True
    if cause == "grad_mode" and _compiled_in_this_step(miss):
        return (
            Remedy(
                summary="Each step runs these blocks with and without gradients, which takes a graph for each: run one step "
                "before the timed ones."
            ),
            Remedy(
                summary="Run the part without gradients eager: torch.compiler.set_stance('force_eager') around it."
            ),
        ), True
    if cause == "container_len" and source.endswith("._modules"):
        return (Remedy(summary=f"Add modules to {attribute} before the first compiled call."),), True
    if cause == "container_len" and miss.argument():
        alike = (
            f"Pass {attribute} with the same length and the same keys in the same order in every call (fill it up); numbers in "
            "it are constants of the graph, so pass those as one tensor."
        )
        return (Remedy(summary=alike),), True
    if cause == "dtype" and miss.on_module():
        fixed = f"Give {attribute} its dtype before the first compiled call, and leave it."
        return (Remedy(summary=fixed),), True
    if cause == "requires_grad" and miss.on_module():
        return _FROZEN, True
    if cause == "int_arg" and isinstance(miss.guard.expected, (bool, str, Code)):
        # no symbol stands for these
        return (
            Remedy(summary=f"Decide outside the block what {attribute} selects, and pass that as a tensor."),
            Remedy(
                summary=f"Each value of {attribute} is a variant: run one step of each before the timed steps, and keep their "
                "number below recompile_limit."
            ),
        ), True
    if miss.guard.kind == "alias":
        copied = f"Pass a copy ({attribute}.clone()) where one tensor would be given twice, or warm up a call of each kind."
        return (Remedy(summary=copied),), True
    if cause == "helper_class_identity" and miss.on_module() and miss.in_time():
        chosen = (
            f"Choose {attribute} before the first compiled call, and leave it; where objects of several classes are needed, "
            "each class is a variant: warm each up."
        )
        return (Remedy(summary=chosen),), False
    sides = sizes.sides(miss.guard) if cause == "size_specialized" else None
    if sides is not None:
        return (Remedy(summary=f"Warm up one size {sides} before the first timed step."),), False
    return (), False


def _compiled_in_this_step(miss: Miss) -> bool:
    """True when the entry that was missed is of the same step: both kinds of call belong to one step of training."""
    made = miss.history.compiles.get(miss.entry or "")
    return made is not None and made.step == miss.event.step


def _of_object(miss: Miss) -> bool:
    """True for what a module does not hold itself: an entry of a dictionary or a list, an attribute of a plain object."""
    name = guards.pretty(miss.guard.source).rpartition(".")[2]
    return not name.isidentifier() or miss.owner in ("object", "class")


def _read_by_torch(miss: Miss) -> bool:
    """True for an attribute that no line of the program names: a layer of torch reads it (``p`` of a dropout), which takes
    no tensor there.
    """
    name = guards.pretty(miss.guard.source).rpartition(".")[2]
    lines = [f.code for f in miss.event.stack if f.code and places.rank(f) < 2]
    return bool(lines) and not any(re.search(rf"\b{re.escape(name)}\b", line) for line in lines)
