"""Errors: what raises, and what goes wrong without any event."""

from __future__ import annotations

import re

from cftdiag.diagnose.engine import places
from cftdiag.diagnose.engine.cause import cause
from cftdiag.events import Frame
from cftdiag.findings import Remedy

CAUSES = (
    cause(
        "ac_recompute_other_graph",
        says="The recomputation of a checkpointed block saved other tensors than its forward{limit_note}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Remove the recompile named in the other findings: with one variant forward and recomputation agree."
            ),
            Remedy(
                summary="Let integer attributes be dynamic, if one of them is what changes.",
                change={"torch._dynamo.config.allow_unspec_int_on_nn_module": True},
            ),
            Remedy(
                summary="Put the checkpoint inside the compiled region (compile the wrapper), so that both passes are one graph."
            ),
            Remedy(
                summary="Raise the limit: block.compile(recompile_limit={more}).",
                change={"compile_kwargs": {"recompile_limit": "{more}"}},
            ),
        ),
    ),
    cause(
        "ac_dtype_mismatch",
        says="Forward saved {expected}, the recomputation {actual}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Cast the inputs before the checkpoint boundary, so that both passes see one dtype."
            ),
            Remedy(
                summary="Order AC -> compile -> FSDP2, with the mixed-precision policy outside the checkpoint."
            ),
            Remedy(summary="Under autocast: torch.autocast(..., cache_enabled=False)."),
        ),
    ),
    cause(
        "constraint_violation",
        says="A dimension marked dynamic is fixed by the code: {message}",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Find the line that fixes the size in torch's message and make it work for any size."
            ),
            Remedy(
                summary="Use torch._dynamo.maybe_mark_dynamic instead of mark_dynamic, or dynamic=True.",
                change={"dynamic": True},
            ),
        ),
    ),
    cause(
        "limit_not_visible_in_thread",
        says="The limit of {limit} was hit in a thread that does not see the limit set in the main thread{main_limit}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Pass it to the compile call: block.compile(recompile_limit={more}).",
                change={"compile_kwargs": {"recompile_limit": "{more}"}},
            ),
            Remedy(summary="Remove what makes the block recompile (see the other findings)."),
            Remedy(summary="Set torch._dynamo.config.recompile_limit inside the thread as well."),
        ),
    ),
    cause(
        "late_hook_ignored",
        says="Hook {hook} on `{module}` was registered at step {step}, after the block was compiled; the compiled code ignores it.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Guard hooks: torch._dynamo.config.skip_nnmodule_hook_guards = False.",
                change={"torch._dynamo.config.skip_nnmodule_hook_guards": False},
            ),
            Remedy(summary="Register the hook before the first compiled call."),
            Remedy(summary="Call torch._dynamo.reset() after registering it."),
        ),
    ),
    cause(
        "compiled_region_not_reached",
        says="{blocks} was to be compiled and ran no graph: {why}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Put the {skipped_class} into a module with a forward of its own, or torch.compile a function that calls it."
            ),
            Remedy(
                summary="Use block.compile() (in place), or put torch.compile's result back into the model."
            ),
            Remedy(summary="Call block(x) instead of block.forward(x)."),
        ),
    ),
    cause(
        "fullgraph_error",
        says="{type}: {message}",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Find the layer that fails: backend eager, then aot_eager, then inductor.",
                change={"compile_backend": "eager"},
            ),
            Remedy(summary="Run the block eager once: an error of the model itself shows there too."),
        ),
    ),
)

_METADATA = re.compile(r"(saved|recomputed) metadata: \{(.*?)\}", re.S)
_DTYPE = re.compile(r"'dtype': ([\w.]+)")


def classify(kind: str, message: str, *, limit_hit: bool = False, cast: bool = False) -> str:
    """The cause of an exception by its class name and text.

    ``limit_hit`` and ``cast`` say what happened at the same step: with the limit hit, the recomputation ran
    eager whatever dtypes it saved; with a recompile by dtype or autocast, another number of saved tensors
    comes from that.
    """
    if "CheckpointError" in kind or "torch.utils.checkpoint:" in message:
        if limit_hit:
            return "ac_recompute_other_graph"
        return "ac_dtype_mismatch" if dtypes(message) or cast else "ac_recompute_other_graph"
    if (
        "ConstraintViolation" in kind
        or "ConstraintViolationError" in message
        or "Constraints violated" in message
    ):
        return "constraint_violation"
    return "fullgraph_error"


def dtypes(message: str) -> tuple[str, str] | None:
    """(saved, recomputed) dtypes of a CheckpointError when both passes saved different ones; compiled code
    may save tensors in another order, so the sets are compared, not the positions.
    """
    found: dict[str, set[str]] = {"saved": set(), "recomputed": set()}
    for what, text in _METADATA.findall(message):
        found[what].update(_DTYPE.findall(text))
    if not found["saved"] or found["saved"] == found["recomputed"]:
        return None
    return ", ".join(sorted(found["saved"])), ", ".join(sorted(found["recomputed"]))


def told(message: str) -> tuple[str, Frame | None]:
    """(what a text says in one line, the user's line that it names): of a constraint violation its first
    item, else the first line.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = next((line.removeprefix("- ") for line in lines if line.startswith("- ")), None)
    found = [
        Frame(file=m[1], line=int(m[2]), function=m[3], code=m[4].strip())
        for m in re.finditer(r'File "(.+)", line (\d+), in (\S+)\s*\n(.*)', message)
    ]
    return first or (lines[0] if lines else ""), places.innermost(found)
