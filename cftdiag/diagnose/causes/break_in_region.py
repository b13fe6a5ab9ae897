"""Graph breaks in a region that cannot be split: a checkpoint, an autograd.Function, a hook."""

from __future__ import annotations

import re

from cftdiag.diagnose.engine import break_types
from cftdiag.diagnose.engine.cause import BREAK, cause
from cftdiag.events import Event
from cftdiag.findings import Remedy

CAUSES = (
    cause(
        "graph_break_in_checkpoint",
        says="`{code}` breaks the graph inside a checkpointed function ({inner}); the whole checkpoint then runs eager.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Remove what breaks in it: {inner}."),
            Remedy(
                summary="Where it has to stay: checkpoint around the compiled block (AC -> compile -> FSDP2, the checkpoint "
                "wrapper outside). The break then splits the graph, and the rest of the checkpoint is compiled."
            ),
        ),
    ),
    cause(
        "autograd_function",
        says="`{applied}` applies an autograd.Function that Dynamo cannot trace: {inner}.",
        kinds=BREAK,
        captured_by_fullgraph=True,
        remedies=(
            Remedy(
                summary="Register it as a custom op: torch.library.custom_op with register_fake and register_autograd."
            ),
            Remedy(
                summary="Keep only what Dynamo traces in its forward and backward; it breaks on: {inner}."
            ),
        ),
    ),
    cause(
        "disabled_hook",
        says="`{code}` calls a module whose hook {function} is disabled for compilation{reason}.",
        kinds=BREAK,
        remedies=(
            Remedy(summary="Put the hook (or fully_shard) on the block itself, not on a module inside it."),
            Remedy(summary="Compile the inner modules without hooks and leave the hooked one eager."),
            Remedy(summary="Remove torch.compiler.disable from the hook if Dynamo can trace it."),
        ),
    ),
    cause(
        "module_backward_hook",
        says="`{code}` calls a module with a backward hook; that needs compiled autograd.",
        kinds=BREAK,
        remedies=(
            Remedy(
                summary="Register the hook on the block itself instead of on a module inside it, or on a parameter "
                "(register_post_accumulate_grad_hook)."
            ),
            Remedy(
                summary="Switch compiled autograd on: torch._dynamo.config.compiled_autograd = True.",
                change={"torch._dynamo.config.compiled_autograd": True},
                applicability="safe",
            ),
        ),
    ),
)

_HOOK = re.compile(r"\bhook\(")


def classify(event: Event) -> str | None:
    """The cause of a break by the region it is in, or None when the region does not matter."""
    detail = event.broke
    operator = str(detail.operator or "")
    mechanism = break_types.of(detail.gb_type)
    if detail.in_checkpoint or "checkpoint" in operator:
        return "graph_break_in_checkpoint"
    if (
        detail.in_autograd_function
        or "autograd.Function" in operator
        or (mechanism is not None and mechanism.cause == "autograd_function")
    ):
        return "autograd_function"
    if mechanism is not None and mechanism.name == "module_backward_hook":
        return "module_backward_hook"
    if disabled(event) and in_hook(event):
        return "disabled_hook"
    return None


def disabled(event: Event) -> bool:
    """True when what broke is wrapped in ``torch.compiler.disable``: a function, a method or a whole module."""
    mechanism = break_types.of(event.broke.gb_type)
    return (
        mechanism is not None and mechanism.name == "disabled"
    ) or "wrapped with `torch.compiler.disable`" in (event.broke.explanation or "")


def in_hook(event: Event) -> bool:
    """True when the break happened in or at the call of a module's hook."""
    return any(
        "torch/nn/modules/module.py" in (f.file or "") and _HOOK.search(f.code or "") for f in event.stack
    )
