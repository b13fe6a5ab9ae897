"""Errors: what raises, and what goes wrong without any event."""

from __future__ import annotations

import re

from cftdiag.diagnose.engine import break_types, places
from cftdiag.diagnose.engine.cause import cause
from cftdiag.error_text import shorten
from cftdiag.events import Frame
from cftdiag.findings import Remedy

CAUSES = (
    cause(
        "ac_recompute_other_graph",
        says="The recomputation of a checkpointed block saved other tensors than its forward{limit_note}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Leave {attribute} as it is from the forward to the end of backward: the recomputation reads it again."
            ),
            Remedy(
                summary="Remove the recompile named in the other findings: with one variant forward and recomputation agree."
            ),
            Remedy(
                summary="Let integer attributes be dynamic, if one of them is what changes.",
                change={"torch._dynamo.config.allow_unspec_int_on_nn_module": True},
                applicability="safe",
            ),
            Remedy(
                summary="Put the checkpoint inside the compiled region (compile the wrapper), so that both passes are one graph."
            ),
            Remedy(
                summary="Raise the limit: block.compile(recompile_limit={more}).",
                change={"compile_kwargs": {"recompile_limit": "{more}"}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "ac_dtype_mismatch",
        says="Forward saved {expected}, the recomputation {actual}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Leave {attribute} as it is from the forward to the end of backward: the recomputation reads it again."
            ),
            Remedy(
                summary="Cast the inputs before the checkpoint boundary, so that both passes see one dtype."
            ),
            Remedy(
                summary="Order AC -> compile -> FSDP2, with the mixed-precision policy outside the checkpoint."
            ),
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
                summary="Use torch._dynamo.maybe_mark_dynamic instead of mark_dynamic: other sizes are then compiled again."
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
                applicability="safe",
            ),
            Remedy(summary="Remove what makes the block recompile (see the other findings)."),
            Remedy(summary="Set torch._dynamo.config.recompile_limit inside the thread as well."),
        ),
    ),
    cause(
        "late_hook_ignored",
        says="Hook {hook} on `{module}` {when}; the compiled code ignores it.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Guard hooks: torch._dynamo.config.skip_nnmodule_hook_guards = False.",
                change={"torch._dynamo.config.skip_nnmodule_hook_guards": False},
                applicability="safe",
            ),
            Remedy(
                summary="Register the hook before the first compiled call, on every block that shares the code; one that has "
                "nothing to do there returns None."
            ),
            Remedy(summary="Call torch._dynamo.reset() after registering it."),
        ),
    ),
    cause(
        "compiled_region_not_reached",
        says="{blocks} was to be compiled and ran no graph: {why}.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Put the {skipped_class} into a module with a forward of its own, or put the result of torch.compile(module) "
                "in its place: module.compile() leaves it eager."
            ),
            Remedy(
                summary="Use block.compile() (in place), or put torch.compile's result back into the model."
            ),
            Remedy(summary="Call block(x) instead of block.forward(x)."),
        ),
    ),
    cause(
        "donated_buffer",
        says="`{code}` goes through one compiled graph twice (retain_graph=True), but what its forward saved was given away "
        "to the first backward.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Keep what the forward saved: torch._functorch.config.donated_buffer = False. Costs memory in backward.",
                change={"torch._functorch.config.donated_buffer": False},
                applicability="safe",
            ),
            Remedy(
                summary="Go through the graph once: add the losses and call backward() once, without retain_graph."
            ),
        ),
    ),
    cause(
        "double_backward",
        says="`{code}` differentiates the backward of a compiled block; compiled backwards have no gradient.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Run the term that is differentiated twice (a gradient penalty, a Hessian-vector product) without compiling: "
                'with torch.compiler.set_stance("force_eager"): around its forward. The rest of the step stays compiled.'
            ),
            Remedy(
                summary="Leave the modules that this term goes through uncompiled, and compile the others."
            ),
        ),
    ),
    cause(
        "unused_subclass_output",
        says="`{code}` makes an output of a compiled block that is a {subclass} and that the loss does not use; its backward "
        "expects a {subclass} as gradient and gets zeros.",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Do not return this output from the compiled block in training; make it where it is used."
            ),
            Remedy(
                summary="Return it detached, at `{code}` alone: the loss does not use it, so no gradient is lost."
            ),
            Remedy(
                summary="Return plain tensors from the block (to_local() or full_tensor() of a DTensor), and wrap them outside."
            ),
        ),
    ),
    cause(
        "fullgraph_error",
        says="{type}: {message}",
        kinds=("error",),
        remedies=(
            Remedy(
                summary="Mend what stands in for {operator} while it is traced (its register_fake, or its meta kernel): it raised. "
                "It has to return an empty tensor of the shape, dtype and device that {operator} returns, for every input that it "
                "is given."
            ),
            Remedy(
                summary="Find the layer that fails: backend eager, then aot_eager, then inductor.",
                edit="--compile-backend eager",
                applicability="diagnosis",
            ),
            Remedy(
                summary="Run the step once without torch.compile: an error of the model itself shows there too.",
                edit="--compile-scope none",
                applicability="diagnosis",
            ),
        ),
    ),
)

#: Remedies of blocks that ran beside their compiled code, and of blocks that did not run.
FORWARD_CALLED = (
    Remedy(summary="Call the block itself at `{code}`, as in block(x): block.forward(x) runs it uncompiled."),
    Remedy(summary="Where forward has to be what is called: block.forward = torch.compile(block.forward)."),
)
NOT_RUN = (
    Remedy(
        summary="Leave {blocks} out of what is compiled; or, if it should train, look where the model leaves it out (a smaller "
        "number of layers in its config, an early exit)."
    ),
)

_METADATA = re.compile(r"(saved|recomputed) metadata: \{(.*?)\}", re.S)
_DTYPE = re.compile(r"'dtype': ([\w.]+)")


#: A tangent of a subclass was expected for an output and zeros came: nothing used that output.
_UNUSED_SUBCLASS = re.compile(r"Expected an? (\w+) tangent but got a plain Tensor")


_OPERATOR_RAISED = re.compile(
    r"failed to run FX node with fake tensors: call_\w+ (?:<built-in \w+ )?([\w.]+).*?got (\w+)\((?:'|\")(.*?)(?:'|\")\)\s*(?:\n|$)",
    re.S,
)
_NO_FAKE = re.compile(r"no fake impl registered|register_fake|does not have a fake impl", re.I)


def own_operator(message: str) -> str | None:
    """The operator of a library or of the program (``name::operator``) that raised while it was traced, when the code that
    stands in for it runs; None for torch's own, whose stand-ins raise what the operator would.
    """
    raised = _OPERATOR_RAISED.search(message)
    parts = raised[1].split(".") if raised is not None and not _NO_FAKE.search(message) else []
    own = len(parts) == 3 and parts[0] not in ("aten", "prims", "torch", "nn")
    return f"{parts[0]}::{parts[1]}" if own else None


def remedies_of(message: str) -> tuple[str | None, tuple[Remedy, ...]]:
    """(sentence, remedies) for an operator that cannot be traced: torch raises there instead of breaking."""
    mechanism = break_types.of("Operator does not support running with fake tensors")
    return (
        (mechanism.says, mechanism.remedies)
        if mechanism is not None and _NO_FAKE.search(message)
        else (None, ())
    )


def classify(
    kind: str, message: str, *, limit_hit: bool = False, cast: bool = False, create_graph: bool = False
) -> str:
    """The cause of an exception by its class name and text.

    ``limit_hit`` and ``cast`` say what happened at the same step: with the limit hit, the recomputation ran
    eager whatever dtypes it saved; with a recompile by dtype or autocast, another number of saved tensors
    comes from that. ``create_graph``: the backward that raised was to be differentiated again; giving saved
    buffers away is then only what torch notices first.
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
    if "does not currently support double backward" in message:
        return "double_backward"
    if "non-empty donated buffers" in message:
        return "double_backward" if create_graph else "donated_buffer"
    return "unused_subclass_output" if subclass(message) else "fullgraph_error"


def subclass(message: str) -> str | None:
    """The tensor subclass of an output that the loss does not use; None for another error."""
    found = _UNUSED_SUBCLASS.search(message)
    return found[1] if found else None


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
    """(what a text says in one line, the user's line that it names): of a constraint violation its first item,
    of an operator that raised its own words, else the first line.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = next((line.removeprefix("- ") for line in lines if line.startswith("- ")), None)
    if raised := _OPERATOR_RAISED.search(message):
        # The first line of these is torch's type of break: it says only that an operator raised.
        first = f"{raised[1]} raised {raised[2]}: {' '.join(raised[3].split())}"
    found = [
        Frame(file=m[1], line=int(m[2]), function=m[3], code=m[4].strip())
        for m in re.finditer(r'File "(.+)", line (\d+), in (\S+)\s*\n(.*)', message)
    ]
    # a line that ends with a colon announces the next: "backend='inductor' raised:"
    head = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return first or shorten(head, 400), places.innermost(found)
