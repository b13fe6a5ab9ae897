"""Recompiles by an attribute of the module: its type, and whether it differs between blocks or changes in time."""

from __future__ import annotations

from typing import Any

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.diagnose.miss import Miss
from cftdiag.findings import Remedy

_VARIANTS = Remedy(summary="Accept one variant per value and keep their number below recompile_limit (now {limit}).")
_ISOLATE = Remedy(
    summary="Give each block a cache of its own: block.compile(isolate_recompiles=True) (torch 2.13).",
    change={"compile_kwargs": {"isolate_recompiles": True}},
)
_LIMIT = Remedy(summary="Raise the limit: block.compile(recompile_limit={more}).", change={"compile_kwargs": {"recompile_limit": "{more}"}})

CAUSES = (
    Cause(
        key="module_int_attr",
        kinds=("recompile", "limit_hit"),
        title="An integer attribute of the module changes",
        what="An `int` attribute of an nn.Module is a constant to Dynamo. A counter that the block or the trainer changes makes the guard fail at each new value.",
        why="Every value is compiled, until recompile_limit stops it and the block runs eager without an error.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Hold the counter in a tensor buffer, or outside the module.\n\n"
        '```python\nself.register_buffer("{name}", torch.zeros((), dtype=torch.long))\nself.{name} += 1\n```',
        references=(ref.RECOMPILATION, ref.torch_issue(128319), ref.torch_issue(140464)),
        remedies=(
            Remedy(
                summary="Let torch treat integer attributes as dynamic: torch._dynamo.config.allow_unspec_int_on_nn_module = True.",
                change={"torch._dynamo.config.allow_unspec_int_on_nn_module": True},
            ),
            Remedy(summary="Hold {attribute} in a tensor: self.register_buffer('{name}', torch.zeros((), dtype=torch.long)) and self.{name} += 1."),
            Remedy(summary="Count outside the module and pass what depends on it as a tensor."),
        ),
        example=example("module_int_attr"),
    ),
    Cause(
        key="module_float_attr",
        kinds=("recompile", "limit_hit"),
        title="A float attribute of the module changes",
        what="A Python float on the module (a loss scale, a LoRA scale, a schedule) is guarded; on torch 2.13 the second value makes it dynamic, older versions compile each.",
        why="At least one recompile in the middle of the run; on older torch one per step.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix='Store it as a tensor and change it in place.\n\n```python\nself.register_buffer("{name}", torch.tensor(1.0))\nself.{name}.fill_(value)\n```',
        references=(ref.RECOMPILATION, ref.torch_issue(115711), ref.torch_issue(107076)),
        remedies=(
            Remedy(summary="Store {attribute} as a tensor: self.register_buffer('{name}', torch.tensor({expected})) and self.{name}.fill_(value)."),
            Remedy(summary="Warm up with two different values before the first timed step."),
        ),
        example=example("module_float_attr"),
    ),
    Cause(
        key="module_bool_attr",
        kinds=("recompile", "limit_hit"),
        title="A flag of the module was switched",
        what="A bool attribute (adapters off for a reference pass, a mode flag) is guarded and was switched between calls.",
        why="One variant per combination of flags; the second one is compiled when the flag is first switched.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Expect two variants and warm both, or keep a separate module for the other mode.\n\n"
        "```python\nfor flag in (True, False):                       # warm both variants\n    set_flag(model, flag)\n    model(**batch)\n```",
        references=(ref.RECOMPILATION, ref.issue("meta-pytorch/torchtune", 721)),
        remedies=(
            Remedy(summary="Two variants are expected: run one step of each before the timed steps."),
            Remedy(summary="Keep a separate (frozen) module for the other mode instead of switching {attribute}."),
        ),
        example=example("module_bool_attr"),
    ),
    Cause(
        key="module_str_attr",
        kinds=("recompile", "limit_hit"),
        title="A string, tuple or constant attribute of the module changes",
        what="A `str`, tuple or other constant on the module (a mode, an implementation name, a window) is guarded and has another value now.",
        why="Every value is compiled on its own.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Choose once when the module is built.\n\n```python\nself.attend = IMPLEMENTATIONS[config.mode]       # in __init__\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Decide what depends on {attribute} when the module is built."),
            Remedy(summary="Warm up one step per value."),
            _VARIANTS,
        ),
        example=example("module_str_attr"),
    ),
    Cause(
        key="layer_idx",
        kinds=("recompile", "limit_hit"),
        title="The block reads its own index",
        what="All blocks share one code object and one cache. A block that reads its `layer_idx` in forward is compiled for that number, so no other block can use the code.",
        why="One compile per layer; from the ninth block on (recompile_limit 8) blocks run eager without an error.",
        says="`{attribute}` is the block's own index ({expected} in the compiled code, {actual} here): every block is compiled separately.",
        fix="Resolve what depends on the index when the module is built, or slice outside the block.\n\n"
        "```python\nfor i, block in enumerate(self.layers):\n    x = block(x, per_layer[:, i])                 # not per_layer[:, self.layer_idx] inside\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(128071), ref.issue("vllm-project/vllm", 12410)),
        remedies=(
            Remedy(
                summary="Resolve per-layer values in __init__ (a buffer, a number) or pass the slice for layer {actual} as an argument; do not read {attribute} in forward."
            ),
            _LIMIT,
            _ISOLATE,
        ),
        example=example("layer_idx"),
    ),
    Cause(
        key="per_layer_attr",
        kinds=("recompile", "limit_hit"),
        title="Blocks of one class differ in an attribute",
        what="Blocks share one code object but differ in a Python value that is constant in time: a window, a layer type, an activation, a missing bias.",
        why="One variant per kind of block is expected and fine; more kinds than recompile_limit (8) are not.",
        says="`{attribute}` is {expected} in the block that was compiled and {actual} in this one: one variant per value.",
        fix="Expect one variant per kind. With many kinds raise the limit or give each block its own cache.\n\n"
        "```python\nblock.compile(recompile_limit=2 * kinds)\n```",
        references=(ref.RECOMPILATION, ref.issue("pytorch/torchtitan", 3737)),
        remedies=(_VARIANTS, _ISOLATE, _LIMIT),
        example=example("per_layer_attr"),
    ),
    Cause(
        key="container_len",
        kinds=("recompile", "limit_hit"),
        title="A list or dict has another length or other keys",
        what="The length of a list and the keys of a dict that the block looks at are guarded: a cache that grows, a list of adapters, optional keyword arguments.",
        why="Every length is compiled, until recompile_limit.",
        says="`{attribute}` has another length or other keys than when the code was compiled ({expected} then, {actual} now).",
        fix="Give it a fixed length, or pass one stacked tensor.\n\n```python\nstates = torch.stack(states)                      # one tensor instead of a growing list\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Keep {attribute} at one length (fill with zeros), or stack its tensors into one."),
            Remedy(summary="Hold what grows outside the compiled block."),
        ),
        example=example("container_len"),
    ),
    Cause(
        key="first_call_latch",
        kinds=("recompile", "limit_hit"),
        title="The first call sets something up",
        what="An attribute is None (or missing) at the first call and set by it: a lazily built cache, a table, a counter. The guard that it is None fails from the second call on.",
        why="The first compile is thrown away: everything is compiled twice.",
        says="`{attribute}` was {expected} at the first call and is set since.",
        fix="Set it up before the first compiled call.\n\n```python\nmodel.build_caches()                              # or one eager forward before compile\nblock.compile()\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Build {attribute} in __init__ or before the first compiled call."),
            Remedy(summary="Run one eager forward before compiling.", change={"eager_warmup": True}),
        ),
        example=example("first_call_latch"),
    ),
    Cause(
        key="training_flag",
        kinds=("recompile", "limit_hit"),
        title="train() / eval() was switched",
        what="`module.training` is guarded where it is read (dropout, batch norm).",
        why="A validation pass compiles a second variant; together with no_grad and eval there may be three.",
        says="`{attribute}` was {expected} when the code was compiled and is {actual} now.",
        fix="Expect one train and one eval variant; switch eval() and no_grad() together, and warm both.\n\n"
        "```python\nmodel.eval()\nwith torch.no_grad():\n    model(**batch)\nmodel.train()\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(100977)),
        remedies=(
            Remedy(summary="Switch eval() and no_grad() together, so that there is one evaluation variant; warm it up before training."),
            Remedy(summary="Evaluate with an uncompiled copy of the model: torch.compiler.set_stance('force_eager')."),
        ),
        example=example("training_flag"),
    ),
)


def classify(miss: Miss) -> str | None:
    """The cause of a miss by an attribute of the module, or None when the guard is about something else."""
    guard = miss.guard
    if guard.path.endswith(".training"):
        return "training_flag"
    if guard.prop in ("length", "keys", "contains"):
        return "per_layer_attr" if miss.on_module() and not miss.in_time() else "container_len"
    latch = (guard.prop == "none" and guard.expected is None) or (guard.prop == "attribute" and guard.text.startswith("not "))
    if latch and (miss.on_module() or guard.root == "G" or "." in guard.path):
        return "first_call_latch" if not miss.on_module() or miss.in_time() else "per_layer_attr"
    if guard.prop in ("type", "identity") and miss.on_module() and not miss.in_time():
        return "per_layer_attr"
    if guard.prop not in ("value", "none", "attribute", "other", "type") or not miss.on_module() or not guard.path:
        return None
    if guard.prop == "type" and guard.expected not in ("int", "float", "bool", "str", "tuple", "NoneType"):
        return None
    if not miss.in_time():
        return "layer_idx" if is_int(guard.expected) and miss.history.equals_index(miss) else "per_layer_attr"
    return _by_type(miss)


def _by_type(miss: Miss) -> str:
    guard = miss.guard
    sample = guard.expected if guard.knows("expected") and guard.expected is not None else guard.actual
    if guard.prop == "type":
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
