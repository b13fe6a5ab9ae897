"""Errors: what raises, and what goes wrong without any event."""

from __future__ import annotations

import re

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="ac_recompute_other_graph",
        kinds=("error",),
        title="Recomputation ran other code than the forward",
        what="A checkpointed block is compiled, and its recomputation in backward selected another cache entry than its forward did (or ran eager, because the recompile limit tripped in between). What it saves then differs, and torch.utils.checkpoint raises.",
        why="The run ends in backward, some steps after the start.",
        says="The recomputation of a checkpointed block saved other tensors than its forward{limit_note}.",
        fix="Remove what makes the block recompile; or checkpoint inside the compiled region.\n\n"
        "```python\nblock = checkpoint_wrapper(block)\nblock.compile(dynamic=True)                       # no variant switch between forward and recompute\n```",
        references=(ref.CHECKPOINT, ref.issue("unslothai/unsloth-zoo", 1001), ref.torch_issue(166926)),
        remedies=(
            Remedy(summary="Remove the recompile named in the other findings: with one variant forward and recomputation agree."),
            Remedy(
                summary="Let integer attributes be dynamic, if one of them is what changes.",
                change={"torch._dynamo.config.allow_unspec_int_on_nn_module": True},
            ),
            Remedy(summary="Put the checkpoint inside the compiled region (compile the wrapper), so that both passes are one graph."),
            Remedy(summary="Raise the limit: block.compile(recompile_limit={more}).", change={"compile_kwargs": {"recompile_limit": "{more}"}}),
        ),
        example=example("ac_recompute_other_graph"),
    ),
    Cause(
        key="ac_dtype_mismatch",
        kinds=("error",),
        title="Recomputation has another dtype than the forward",
        what="A checkpointed block was given (or cast to) one dtype in forward and another in its recomputation: autocast or a mixed-precision wrapper was active in one of them only.",
        why="torch.utils.checkpoint raises in the first backward.",
        says="Forward saved {expected}, the recomputation {actual}.",
        fix="Cast before the checkpoint, and wrap FSDP2 around the checkpoint, not inside it.\n\n"
        "```python\nx = x.to(torch.bfloat16)                          # before checkpoint(...)\nx = checkpoint(block, x, use_reentrant=False)\n```",
        references=(ref.CHECKPOINT, ref.torch_issue(148831), ref.torch_issue(141896)),
        remedies=(
            Remedy(summary="Cast the inputs before the checkpoint boundary, so that both passes see one dtype."),
            Remedy(summary="Order AC -> compile -> FSDP2, with the mixed-precision policy outside the checkpoint."),
            Remedy(summary="Under autocast: torch.autocast(..., cache_enabled=False)."),
        ),
        example=example("ac_dtype_mismatch"),
    ),
    Cause(
        key="constraint_violation",
        kinds=("error",),
        title="A dimension marked dynamic is specialised",
        what="`mark_dynamic` promised that a dimension may be any size, but the code fixes it (a guard on one value, on divisibility, on equality with another).",
        why="torch refuses to compile; the run ends at the first call.",
        says="A dimension marked dynamic is fixed by the code: {message}",
        fix="Remove what fixes the dimension, or use maybe_mark_dynamic.\n\n```python\ntorch._dynamo.maybe_mark_dynamic(x, 1)            # a wish, not a promise\n```",
        references=(ref.DYNAMIC_SHAPES, ref.torch_issue(163083)),
        remedies=(
            Remedy(summary="Find the line that fixes the size in torch's message and make it work for any size."),
            Remedy(summary="Use torch._dynamo.maybe_mark_dynamic instead of mark_dynamic, or dynamic=True.", change={"dynamic": True}),
        ),
        example=example("constraint_violation"),
    ),
    Cause(
        key="limit_not_visible_in_thread",
        kinds=("error",),
        title="The recompile limit was raised in another thread",
        what="Since torch 2.12 `torch._dynamo.config` is per thread. A limit set in the main thread is not seen by worker or autograd threads, which use the default of 8.",
        why="The block hits the default limit although a larger one was set; with fullgraph=True that raises.",
        says="The limit of {limit} was hit in a thread that does not see the limit set in the main thread{main_limit}.",
        fix="Give the limit to torch.compile, which carries it everywhere; better, remove the recompile.\n\n```python\nblock.compile(fullgraph=True, recompile_limit=64)\n```",
        references=(ref.RECOMPILATION, ref.issue("unslothai/unsloth", 6825)),
        remedies=(
            Remedy(
                summary="Pass it to the compile call: block.compile(recompile_limit={more}).",
                change={"compile_kwargs": {"recompile_limit": "{more}"}},
            ),
            Remedy(summary="Remove what makes the block recompile (see the other findings)."),
            Remedy(summary="Set torch._dynamo.config.recompile_limit inside the thread as well."),
        ),
        example=example("limit_not_visible_in_thread"),
    ),
    Cause(
        key="late_hook_ignored",
        kinds=("error",),
        title="A hook registered after the first compiled call is ignored",
        what="Dynamo inlines the modules of a block with the hooks they had at the first call and, by default, does not guard the hook lists.",
        why="The hook never runs, without an error: activations are not captured, a distillation loss is silently wrong.",
        says="Hook {hook} on `{module}` was registered at step {step}, after the block was compiled; the compiled code ignores it.",
        fix="Register hooks before the first compiled call.\n\n```python\nhandle = module.register_forward_hook(capture)    # first\nblock.compile()                                   # then\n```",
        references=(ref.MODULES, ref.torch_issue(117758), ref.torch_issue(173452)),
        remedies=(
            Remedy(
                summary="Guard hooks: torch._dynamo.config.skip_nnmodule_hook_guards = False.",
                change={"torch._dynamo.config.skip_nnmodule_hook_guards": False},
            ),
            Remedy(summary="Register the hook before the first compiled call."),
            Remedy(summary="Call torch._dynamo.reset() after registering it."),
        ),
        example=example("late_hook_ignored"),
    ),
    Cause(
        key="compiled_region_not_reached",
        kinds=("error",),
        title="A compiled block never ran",
        what="The block was compiled (or the result of torch.compile was dropped), but the model never called the compiled code: it calls `forward` directly, a copy, or another module.",
        why="Training runs eager while the log says it is compiled.",
        says="The compiled code of {blocks} was never called while the model ran.",
        fix="Compile in place, and call the module, not its forward.\n\n```python\nblock.compile()                                   # in place; torch.compile(block) returns a wrapper that must be used\nx = block(x)                                      # not block.forward(x)\n```",
        references=(ref.BREAKS, ref.MODULES),
        remedies=(
            Remedy(summary="Use block.compile() (in place), or put torch.compile's result back into the model."),
            Remedy(summary="Call block(x) instead of block.forward(x)."),
        ),
        example=example("compiled_region_not_reached"),
    ),
    Cause(
        key="fullgraph_error",
        kinds=("error",),
        title="Compiling raised an error",
        what="torch.compile raised something that is not a graph break: an error of the backend, of a fake tensor, or of the model itself while it was traced.",
        why="The run ends there (with fullgraph=True always).",
        says="{type}: {message}",
        fix="Read torch's message in the evidence; try a smaller backend to see whose error it is.\n\n"
        '```python\nblock.compile(backend="eager")                    # Dynamo only\nblock.compile(backend="aot_eager")                # plus the backward\n```',
        references=(ref.BREAKS, ref.COMMON_BREAKS),
        remedies=(
            Remedy(summary="Find the layer that fails: backend eager, then aot_eager, then inductor.", change={"compile_backend": "eager"}),
            Remedy(summary="Run the block eager once: an error of the model itself shows there too."),
        ),
        example=example("fullgraph_error"),
    ),
)

_METADATA = re.compile(r"(saved|recomputed) metadata: \{(.*?)\}(?=\n|$)", re.S)
_DTYPE = re.compile(r"'dtype': ([\w.]+)")
_SHAPE = re.compile(r"'shape': torch\.Size\(\[([^\]]*)\]\)")


def classify(kind: str, message: str) -> str:
    """The cause of an exception by its class name and text."""
    if "CheckpointError" in kind or "torch.utils.checkpoint:" in message:
        return "ac_dtype_mismatch" if dtypes(message) else "ac_recompute_other_graph"
    if "ConstraintViolation" in kind or "ConstraintViolationError" in message or "Constraints violated" in message:
        return "constraint_violation"
    return "fullgraph_error"


def dtypes(message: str) -> tuple[str, str] | None:
    """(saved, recomputed) dtype of a CheckpointError in which tensors differ by dtype and by nothing else."""
    found = [(what, _DTYPE.search(text), _SHAPE.search(text)) for what, text in _METADATA.findall(message)]
    pairs = list(zip(found[::2], found[1::2], strict=False))
    for (_, saved, shape), (_, again, shape_again) in pairs:
        if saved and again and saved[1] != again[1]:
            if shape and shape_again and shape[1] != shape_again[1]:
                return None
            return saved[1], again[1]
    return None
