"""Recompiles by a property of a tensor other than its shape."""

from __future__ import annotations

from cftdiag.diagnose.engine.cause import RECOMPILES, cause
from cftdiag.diagnose.engine.miss import Miss
from cftdiag.findings import Remedy

CAUSES = (
    cause(
        "requires_grad",
        says="`{argument}` has requires_grad={actual} here; the code was compiled for {expected}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Make the input of the first block that runs with gradients require grad: after the embedding "
                "(model.enable_input_require_grads()), or, where the blocks before it run under no_grad, "
                "x = x.detach().requires_grad_() between the two.",
                change={"input_requires_grad": True},
                applicability="safe",
            ),
            Remedy(summary="Accept exactly two variants; warm both up."),
        ),
    ),
    cause(
        "dtype",
        says="`{argument}` is {actual} here; the code was compiled for {expected}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Cast {argument} to one dtype before the first block, or keep the residual stream in one dtype."
            ),
            Remedy(summary="Train without autocast, in the weights' own dtype (other numbers)."),
        ),
    ),
    cause(
        "tensor_type",
        says="`{argument}` is a {actual} here; the code was compiled for another class of tensor.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Convert {argument} to a plain tensor before the block, on every call (wait_tensor, to_local, "
                "x.view_as(x) of a Parameter; not .data or detach(), which cut its gradient)."
            ),
            Remedy(summary="Accept one variant per class and warm them up."),
        ),
    ),
    cause(
        "rank_change",
        says="`{argument}` has {actual} here; the code was compiled for {expected}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Give {argument} one shape on every path before the block: unsqueeze, expand to the same sizes, "
                "contiguous(). A dimension of 1 in place of a longer one would be compiled again."
            ),
            Remedy(summary="Accept one variant per number of dimensions and warm them up."),
        ),
    ),
    cause(
        "none_vs_tensor",
        says="`{argument}` is {actual} here; the code was compiled for {expected}.",
        kinds=RECOMPILES,
        remedies=(
            Remedy(
                summary="Pass {argument} to the block in every call, or in none. Where the model itself drops a mask without "
                "padding (transformers does), give it the mask in four dimensions, which it leaves alone."
            ),
            Remedy(summary="Accept two variants and warm both up."),
        ),
    ),
)

_NONE = "NoneType"


def classify(miss: Miss) -> str | None:
    """The cause of a miss by a property of a tensor, or None when the guard is about something else."""
    guard = miss.guard
    if guard.kind == "requires_grad":
        return "requires_grad"
    if guard.kind == "dtype":
        return "dtype"
    if guard.kind == "rank":
        return "per_layer_attr" if miss.on_module() and not miss.in_time() else "rank_change"
    if guard.kind == "dispatch":
        return "grad_mode" if _inference(str(guard.expected), str(guard.actual)) else "tensor_type"
    if guard.kind == "tensor_type":
        if guard.value_type == _NONE:
            return "per_layer_attr" if miss.on_module() and not miss.in_time() else "none_vs_tensor"
        return "tensor_type"
    if guard.kind == "none" and miss.argument() and "." not in guard.path:
        return "none_vs_tensor"
    if (
        guard.kind in ("value", "type", "attribute", "contains")
        and miss.argument()
        and "." not in guard.path
        and guard.value_type == _NONE
    ):
        return "none_vs_tensor"
    if guard.kind == "type" and guard.expected == _NONE and miss.argument():
        return "none_vs_tensor"
    return None


def _inference(expected: str, actual: str) -> bool:
    """True when only autograd's keys differ: the tensor was made in inference mode."""
    keys = [
        {k.strip() for k in text.removeprefix("DispatchKeySet(").rstrip(")").split(",")}
        for text in (expected, actual)
    ]
    differing = keys[0] ^ keys[1]
    return bool(differing) and all(k == "ADInplaceOrView" or k.startswith("Autograd") for k in differing)
