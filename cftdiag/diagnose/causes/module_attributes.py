"""Recompiles by an attribute of the module: its type, and whether it differs between blocks or changes in
time.
"""

from __future__ import annotations

from typing import Any

from cftdiag.diagnose.engine.cause import RECOMPILES, cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

_VARIANTS = Remedy(
    summary="Accept one variant per value: keep their number below recompile_limit (now {limit}) and warm them up before the timed steps."
)
_ISOLATE = Remedy(
    summary="Give each block a cache of its own: block.compile(isolate_recompiles=True) (torch 2.13).",
    change={"compile_kwargs": {"isolate_recompiles": True}},
    applicability="safe",
)
_LIMIT = Remedy(
    summary="Raise the limit: block.compile(recompile_limit={more}).",
    change={"compile_kwargs": {"recompile_limit": "{more}"}},
    applicability="safe",
)

CAUSES = (
    cause(
        "module_int_attr",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Let torch treat integer attributes as dynamic: torch._dynamo.config.allow_unspec_int_on_nn_module = True.",
                change={"torch._dynamo.config.allow_unspec_int_on_nn_module": True},
                applicability="safe",
            ),
            Remedy(
                summary="Hold {attribute} in a tensor ({holder}.register_buffer('{name}', torch.zeros((), dtype=torch.long))), and compute what "
                "depends on it with tensor operators: an if, min() or int() on it would break the graph."
            ),
            Remedy(summary="Count outside the module and pass what depends on it as a tensor."),
        ),
    ),
    cause(
        "module_float_attr",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Store {attribute} as a tensor: {holder}.register_buffer('{name}', torch.tensor({expected})) and "
                "{attribute}.fill_(value)."
            ),
            Remedy(summary="Warm up with two different values before the first timed step."),
        ),
    ),
    cause(
        "module_bool_attr",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Two variants are expected: run one step of each before the timed steps."),
            Remedy(
                summary="Keep a separate module for the other mode, frozen and not compiled, instead of switching {attribute}."
            ),
        ),
    ),
    cause(
        "module_str_attr",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Decide what depends on {attribute} when the module is built."),
            _VARIANTS,
        ),
    ),
    cause(
        "layer_idx",
        says="`{attribute}` is the block's own index ({expected} in the compiled code, {actual} here): every block is compiled separately.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Resolve what depends on {attribute} in __init__, or pass layer {actual}'s slice as an argument; do not read it in forward."
            ),
            _LIMIT,
            _ISOLATE,
        ),
    ),
    cause(
        "per_layer_attr",
        says="`{attribute}` is {expected} in the block that was compiled[ and {actual} in this one]: one variant per value.",
        kinds=RECOMPILES,
        remedies=(_VARIANTS, _ISOLATE, _LIMIT),
    ),
    cause(
        "container_len",
        says="`{attribute}` has another length, other keys or another order of them than when the code was compiled"
        "[ ({expected} then, {actual} now)].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Hold what grows outside the compiled block: return what the block adds to {attribute}, and add it there."
            ),
            Remedy(
                summary="Keep {attribute} at one length (fill it up with zeros, each a tensor of its own)."
            ),
        ),
    ),
    cause(
        "first_call_latch",
        says="`{attribute}` was {expected} at the first call and is set since.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Build {attribute} in __init__ or before the first compiled call."),
            Remedy(
                summary="Run one eager forward before compiling.",
                change={"eager_warmup": True},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "training_flag",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Switch eval() and no_grad() together, so that there is one evaluation variant; warm it up before training."
            ),
            Remedy(
                summary="Evaluate with an uncompiled copy of the model: torch.compiler.set_stance('force_eager')."
            ),
        ),
    ),
)


def classify(miss: Miss) -> str | None:
    """The cause of a miss by an attribute of the module, or None when the guard is about something else."""
    guard = miss.guard
    if guard.path.endswith(".training"):
        return "training_flag"
    if guard.kind in ("length", "keys", "contains"):
        return "per_layer_attr" if miss.on_module() and not miss.in_time() else "container_len"
    latch = (guard.kind == "none" and not guard.negated) or (guard.kind == "attribute" and guard.negated)
    if latch and (miss.on_module() or guard.root == "G" or "." in guard.path):
        return "first_call_latch" if not miss.on_module() or miss.in_time() else "per_layer_attr"
    if guard.kind in ("type", "identity") and miss.on_module() and not miss.in_time():
        return "per_layer_attr"
    if (
        guard.kind not in ("value", "none", "attribute", "other", "type")
        or not miss.on_module()
        or not guard.path
    ):
        return None
    if guard.kind == "type" and guard.expected not in ("int", "float", "bool", "str", "tuple", "NoneType"):
        return None
    if not miss.in_time():
        return "layer_idx" if is_int(guard.expected) and miss.history.equals_index(miss) else "per_layer_attr"
    return _by_type(miss)


def _by_type(miss: Miss) -> str:
    guard = miss.guard
    sample = guard.expected if guard.knows("expected") and guard.expected is not None else guard.actual
    if guard.kind == "type":
        names = {str(guard.expected), guard.value_type}
        kinds = {"bool": "module_bool_attr", "float": "module_float_attr", "int": "module_int_attr"}
        return next((cause for name, cause in kinds.items() if name in names), "module_str_attr")
    if isinstance(sample, bool):
        return "module_bool_attr"
    if is_int(sample):
        return "module_int_attr"
    if isinstance(sample, float):
        return "module_float_attr"
    if not guard.knows("expected") and guard.value_type in ("int", "float"):
        return f"module_{guard.value_type}_attr"
    return "module_str_attr"


def is_int(value: Any) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)
