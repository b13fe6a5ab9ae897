"""Recompiles by a Python value that reaches the block from outside: arguments, closures, classes, globals, the optimizer."""

from __future__ import annotations

import re

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.diagnose.miss import Miss
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="int_arg",
        kinds=("recompile", "limit_hit"),
        title="A Python number or string argument changes",
        what="The block gets a Python int (or float, bool, string) as an argument. Its value is guarded: used as an index or key it stays a constant, otherwise the second value makes an int dynamic.",
        why="One recompile, or one per value until recompile_limit when the number selects something in Python.",
        says="`{argument}` was {expected} when the code was compiled and is {actual} now.",
        fix="Pass it as a 0-d tensor, or look it up outside the block and pass the result.\n\n```python\nx = block(x, scale=table[k])                      # a tensor, not k\n```",
        references=(ref.RECOMPILATION, ref.DYNAMIC_SHAPES),
        remedies=(
            Remedy(summary="Look up outside the block what {argument} selects and pass that, or pass a 0-d tensor."),
            Remedy(summary="Compile with dynamic=True: integers are symbols from the first call on.", change={"dynamic": True}),
            Remedy(
                summary="Without touching code: TORCH_COMPILE_DYNAMIC_SOURCES={dynamic_source}.",
                change={"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "{dynamic_source}"}},
            ),
        ),
        example=example("int_arg"),
    ),
    Cause(
        key="closure_identity",
        kinds=("recompile", "limit_hit"),
        title="A new function or closure is passed each call",
        what="A function made anew for each batch (a mask function, a partial, a lambda) carries values in its closure. Dynamo guards what it reads there.",
        why="Every batch compiles again until recompile_limit, then the block runs eager: slow, and more memory.",
        says="`{argument}` carries a value in its closure that was {expected} when the code was compiled and is {actual} now.",
        fix="Make the function once and carry what changes in tensors.\n\n"
        "```python\ndef mask_mod(b, h, q, kv):\n    return document_id[q] == document_id[kv]      # document_id: one tensor, updated in place\n```",
        references=(ref.RECOMPILATION, ref.issue("vllm-project/vllm", 27178)),
        remedies=(
            Remedy(summary="Build {argument} once, outside the loop, and carry what changes in tensors that it closes over."),
            Remedy(summary="Build the mask (or BlockMask) outside the block and pass it."),
        ),
        example=example("closure_identity"),
    ),
    Cause(
        key="helper_class_identity",
        kinds=("recompile", "limit_hit"),
        title="A helper object of another class",
        what="The class of every Python object that the block uses is guarded. Objects of different classes, or of a class that is created again for each call, fail it.",
        why="One compile per class; with a class made in a function, one per call until recompile_limit.",
        says="`{argument}` is an object of another class than {expected}, for which the code was compiled.",
        fix="Define the class once at module level, and use one class (or plain tensors) for that argument.\n\n"
        "```python\nclass Helper: ...                                 # at module level, not inside a function\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Define the class of {argument} once at module level and pass objects of that class only."),
            Remedy(summary="Pass the tensors that the block needs instead of the object."),
        ),
        example=example("helper_class_identity"),
    ),
    Cause(
        key="class_attr",
        kinds=("recompile", "limit_hit"),
        title="A class attribute changes",
        what="The block reads an attribute of a class (a shared setting, a counter of all instances). Its value is guarded like a constant.",
        why="A change anywhere in the program compiles every block again.",
        says="Class attribute `{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Read it once into the instance, or hold it in a tensor.\n\n```python\nself.scale = torch.tensor(Config.scale)           # in __init__\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Copy {attribute} into the instance when it is built, or hold it in a tensor."),
            Remedy(summary="Set it before the first compiled call and leave it."),
        ),
        example=example("class_attr"),
    ),
    Cause(
        key="global_value",
        kinds=("recompile", "limit_hit"),
        title="A global variable changes",
        what="The block reads a module-level variable (or an entry of a global dict). Its value is guarded.",
        why="A change anywhere in the program compiles every block that reads it again.",
        says="Global `{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Pass it as an argument, or hold it in a tensor.\n\n```python\nSCALE = torch.tensor(1.0)\nSCALE.fill_(new)                                  # in place, no guard fails\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Hold {attribute} in a tensor and change it in place."),
            Remedy(summary="Pass it as an argument, or set it once before compiling."),
        ),
        example=example("global_value"),
    ),
    Cause(
        key="optimizer_lr_float",
        kinds=("recompile", "limit_hit"),
        title="The optimizer's learning rate is a Python float",
        what="A compiled `optimizer.step` reads `param_groups[i]['lr']`; a scheduler changes that float. On torch 2.13 the second value makes it dynamic, older versions compile each.",
        why="At least one recompile of the whole optimizer; on older torch one per scheduler step.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Make it a tensor.\n\n```python\noptimizer = torch.optim.AdamW(params, lr=torch.tensor(1e-3))\n```",
        references=(ref.torch_issue(107076), ref.torch_issue(163093), ref.RECOMPILATION),
        remedies=(
            Remedy(summary="Build the optimizer with lr=torch.tensor(...) and let the scheduler change it in place."),
            Remedy(summary="Compile the optimizer step after the first scheduler step."),
        ),
        example=example("optimizer_lr_float"),
    ),
    Cause(
        key="object_identity",
        kinds=("recompile", "limit_hit"),
        title="Another Python object where the same one was expected",
        what="Dynamo guards the identity of functions, enum members and other objects it cannot look into, and whether two arguments are the same tensor.",
        why="Every new object compiles again, also when it is equal to the old one.",
        says="`{argument}` is not the same object as when the code was compiled.",
        fix="Keep one object and pass it always.\n\n```python\nACT = torch.nn.functional.gelu                     # once\nx = block(x, ACT)\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Create the object behind {argument} once and use it for every call."),
            Remedy(summary="Accept one variant per object and warm them up."),
        ),
        example=example("object_identity"),
    ),
    Cause(
        key="generic_guard",
        kinds=("recompile", "limit_hit"),
        title="A recompile for another reason",
        what="A guard failed that has no page of its own here. The finding carries torch's own text.",
        why="Every recompile costs seconds to minutes, and after recompile_limit the block runs eager.",
        says="The guard `{guard}` failed.",
        fix="See which value the guard names and keep it constant, or make it a tensor.\n\n```python\nTORCH_LOGS=recompiles python train.py             # all reasons\n```",
        references=(ref.RECOMPILATION,),
        remedies=(Remedy(summary="Keep what the guard names constant between calls, or pass it as a tensor."),),
        example=example("generic_guard"),
    ),
)

_CLOSURE = re.compile(r"\.__closure__\[|\.cell_contents|\.__(?:code|defaults|kwdefaults)__|\.keywords\[|\.func\b|\.__func__\b")
_OPTIMIZER = re.compile(r"param_groups\[\d+\]\[")
_CLASS = re.compile(r"\btype\(|\.__class__\b|\.__dict__\)?\[|\.__mro__\[")
_SCALARS = ("int", "float", "bool", "str")


def classify(miss: Miss) -> str | None:
    """The cause of a miss by a value from outside the module, or None when the guard is about the module itself."""
    guard = miss.guard
    if guard.root == "G":
        return _global(miss)
    if guard.prop == "value" and _CLASS.search(guard.source):
        return "class_attr"
    if guard.prop in ("identity", "alias"):
        return "object_identity"
    if guard.prop == "type":
        return "int_arg" if guard.expected in _SCALARS and guard.path == "" else _type(miss)
    if guard.prop in ("value", "other", "none") and guard.root and miss.argument():
        return "int_arg"
    return None


def early(miss: Miss) -> str | None:
    """Causes that go before all others: what a closure carries, and the optimizer's own settings."""
    if _CLOSURE.search(miss.guard.source):
        return "closure_identity"
    return "optimizer_lr_float" if _OPTIMIZER.search(miss.guard.source) else None


def _type(miss: Miss) -> str:
    return "container_len" if miss.guard.expected in ("list", "tuple", "dict", "set") else "helper_class_identity"


def _global(miss: Miss) -> str:
    guard = miss.guard
    if guard.prop == "identity":
        return "object_identity"
    if guard.prop == "type":
        return "helper_class_identity"
    owner = miss.event.detail.get("owner_type")
    attribute = re.fullmatch(r"\[['\"][\w.]+['\"]\]((?:\.\w+)+)", guard.path)
    if owner is not None:
        return "class_attr" if owner == "type" or _CLASS.search(guard.source) else "global_value"
    # Without the owner's type a capital letter tells a class from a module or an instance, as Python's naming does.
    named = re.match(r"\[['\"](\w+)['\"]\]", guard.path)
    return "class_attr" if attribute and named and named[1][:1].isupper() and not named[1].isupper() else "global_value"
