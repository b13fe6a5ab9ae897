"""Recompiles by a Python value that reaches the block from outside: arguments, closures, classes, globals,
the optimizer.
"""

from __future__ import annotations

from cftdiag.diagnose.engine.cause import RECOMPILES, cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

_IN_A_TENSOR = Remedy(
    summary="Hold {attribute} in a tensor, change it in place, and compute what depends on it with tensor operators: an if, min() "
    "or int() on it would break the graph."
)

CAUSES = (
    cause(
        "int_arg",
        says="`{argument}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Look up outside the block what {argument} selects and pass that as a tensor, or pass {argument} itself as a 0-d tensor."
            ),
            Remedy(
                summary="Compile with dynamic=True: integers are symbols from the first call on.",
                change={"dynamic": True},
                applicability="safe",
            ),
            Remedy(
                summary="Without touching code: TORCH_COMPILE_DYNAMIC_SOURCES={dynamic_source}.",
                change={"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "{dynamic_source}"}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "closure_identity",
        says="`{argument}` {change}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Build {argument} once, outside the loop, and carry what changes in tensors that it closes over."
            ),
            Remedy(
                summary="Where {argument} needs none of the block's own tensors: call it outside the block, and pass what it returns."
            ),
        ),
    ),
    cause(
        "shared_code_object",
        says="`{name_of_code}` is one code object for several classes of blocks, with one cache of {limit} variants; each "
        "class takes one of them.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Give each block a cache of its own: block.compile(isolate_recompiles=True) (torch 2.13).",
                change={"compile_kwargs": {"isolate_recompiles": True}},
                applicability="safe",
            ),
            Remedy(
                summary="Raise the limit: block.compile(recompile_limit={more}).",
                change={"compile_kwargs": {"recompile_limit": "{more}"}},
                applicability="safe",
            ),
            Remedy(
                summary="Apply the decorator outside what is compiled (it made `{own_wrapper}`), or check once where the model is "
                "called."
            ),
            Remedy(
                summary="Leave it so while there are fewer than {limit} such classes: each compiles once, at its first call."
            ),
        ),
    ),
    cause(
        "kv_cache",
        says="The block is given a cache of keys and values (`{argument}`), which training does not use; its state is "
        "guarded in each layer.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Train without a cache: model.config.use_cache = False, or use_cache=False in the call.",
                change={"model_config": {"use_cache": False}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "helper_class_identity",
        says="`{argument}` is an object of another class than {expected}, for which the code was compiled.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Define the class of {argument} once at module level and pass objects of that class only."
            ),
            Remedy(summary="Pass the tensors that the block needs instead of the object."),
        ),
    ),
    cause(
        "class_attr",
        says="Class attribute `{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            _IN_A_TENSOR,
            Remedy(summary="Where it need not change: set it before the first compiled call and leave it."),
        ),
    ),
    cause(
        "global_value",
        says="Global `{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            _IN_A_TENSOR,
            Remedy(summary="Pass it as a tensor argument, or set it once before compiling."),
        ),
    ),
    cause(
        "optimizer_lr_float",
        says="`{attribute}` was {expected} when the code was compiled[ and is {actual} now].",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Build the optimizer with lr=torch.tensor(...) and let the scheduler change it in place."
            ),
        ),
    ),
    cause(
        "object_identity",
        says="`{argument}` is not the same object as when the code was compiled.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Where the object behind {argument} is made anew: create it once and use it for every call."
            ),
            Remedy(
                summary="Where several objects take turns, as members of an Enum do: each is one variant; run a step of each before "
                "the timed ones, and keep their number below recompile_limit (now {limit})."
            ),
        ),
    ),
    cause(
        "generic_guard",
        says="The guard `{guard}` failed.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(summary="Keep what the guard names constant between calls, or pass it as a tensor."),
        ),
    ),
)

_SCALARS = ("int", "float", "bool", "str")


def classify(miss: Miss) -> str | None:
    """The cause of a miss by a value from outside the module, or None when the guard is about the module
    itself.
    """
    guard = miss.guard
    if guard.root == "G":
        return _global(miss)
    if guard.kind in ("identity", "alias"):
        return "object_identity"
    if guard.kind == "type":
        return "int_arg" if guard.expected in _SCALARS and guard.path == "" else _type(miss)
    if guard.kind in ("value", "other", "none") and guard.root and miss.argument():
        return "int_arg"
    return None


def early(miss: Miss) -> str | None:
    """Causes that go before all others: what a closure carries, the optimizer's own settings, a value read
    through the class.
    """
    if miss.owner == "cache":
        return "kv_cache"
    if miss.guard.kind in ("identity", "type") and _shared_wrapper(miss):
        return "shared_code_object"
    through = miss.guard.through
    if through == "closure":
        return "closure_identity"
    if through == "optimizer":
        return "optimizer_lr_float"
    return "class_attr" if miss.guard.kind == "value" and through == "class" else None


def _shared_wrapper(miss: Miss) -> bool:
    """True when blocks of different classes missed each other in a function that closes over theirs: the wrapper that
    one decorator makes for all of them.
    """
    free = set(miss.event.missed.free) - {"__class__"}
    entry, block = miss.context.block(miss.entry_block), miss.context.block(miss.block)
    if not free or entry is None or block is None or entry.cls == block.cls or miss.in_time():
        return False
    # the wrapper is given the module as the first of its *args
    return miss.guard.root in free or miss.guard.value_type == block.cls


def _type(miss: Miss) -> str:
    return (
        "container_len"
        if miss.guard.expected in ("list", "tuple", "dict", "set")
        else "helper_class_identity"
    )


def _global(miss: Miss) -> str:
    guard = miss.guard
    if guard.kind == "identity":
        return "object_identity"
    if guard.kind == "type":
        return "helper_class_identity"
    if guard.through == "class" or miss.owner == "class":
        return "class_attr"
    if miss.owner is not None:
        return "global_value"
    # A recorded trace does not tell what owns the attribute: a capital letter tells a class from a module or an
    # instance, as Python's naming does.
    name = guard.global_name or ""
    named = bool(guard.attributes) and name[:1].isupper() and not name.isupper()
    return "class_attr" if named else "global_value"
