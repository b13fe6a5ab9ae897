"""Recompiles by a property of a tensor other than its shape."""

from __future__ import annotations

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.diagnose.miss import Miss
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="requires_grad",
        kinds=("recompile", "limit_hit"),
        title="An input needs a gradient for one block and not for another",
        what="`requires_grad` of every tensor is guarded. With frozen embeddings the first block's input needs no gradient, the later blocks' does.",
        why="The block is compiled twice, and every later recompile may happen twice as well.",
        says="`{argument}` has requires_grad={actual} here; the code was compiled for {expected}.",
        fix="Let the embedding's output require grad, or accept exactly two variants.\n\n"
        "```python\nmodel.enable_input_require_grads()               # transformers\n# or: hidden_states.requires_grad_()\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(141039)),
        remedies=(
            Remedy(
                summary="Make the first block's input require grad (model.enable_input_require_grads(), or x.requires_grad_() after the embedding).",
                change={"input_requires_grad": True},
            ),
            Remedy(summary="Accept exactly two variants; warm both up."),
        ),
        example=example("requires_grad"),
    ),
    Cause(
        key="dtype",
        kinds=("recompile", "limit_hit"),
        title="A tensor's dtype changed",
        what="The dtype of every tensor is guarded; the residual stream is fp32 into the first block and bf16 later (autocast), or a caller passes another dtype.",
        why="One compile per dtype, and mixed precision is not what you think it is.",
        says="`{argument}` is {actual} here; the code was compiled for {expected}.",
        fix="Cast once before the first block.\n\n```python\nx = self.embed(ids).to(torch.bfloat16)\nfor block in self.layers:\n    x = block(x)\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(128134)),
        remedies=(
            Remedy(summary="Cast {argument} to one dtype before the first block, or keep the residual stream in one dtype."),
            Remedy(summary="Train without autocast, in the weights' own dtype.", change={"autocast": False}),
        ),
        example=example("dtype"),
    ),
    Cause(
        key="tensor_type",
        kinds=("recompile", "limit_hit"),
        title="A tensor of another class",
        what="The class and the dispatch keys of every tensor are guarded: a plain tensor in one call, a subclass (DTensor, AsyncCollectiveTensor, Parameter), another device or a Python number in another.",
        why="One compile per class, and the flip often depends on timing or on the position of the block.",
        says="`{argument}` is a {actual} here; the code was compiled for another class of tensor.",
        fix="Give the block one class always: wait for the collective, unwrap the subclass.\n\n"
        "```python\nx = torch.distributed._functional_collectives.wait_tensor(x)\n```",
        references=(ref.RECOMPILATION, ref.torch_issue(187073)),
        remedies=(
            Remedy(summary="Convert {argument} to a plain tensor before the block (wait_tensor, to_local, .data), on every call."),
            Remedy(summary="Accept one variant per class and warm them up."),
        ),
        example=example("tensor_type"),
    ),
    Cause(
        key="none_vs_tensor",
        kinds=("recompile", "limit_hit"),
        title="An argument is None in some calls",
        what="An optional argument (an attention mask, a cache) is None in one call and given in another. Whether it is None is guarded.",
        why="Two variants are compiled, the second one when the first batch of the other kind comes.",
        says="`{argument}` is {actual} here; the code was compiled for {expected}.",
        fix="Always pass it, or never.\n\n```python\nmask = torch.ones_like(ids) if mask is None else mask\n```",
        references=(ref.RECOMPILATION,),
        remedies=(
            Remedy(summary="Pass {argument} in every call (a full mask instead of None), or in none."),
            Remedy(summary="Accept two variants and warm both up."),
        ),
        example=example("none_vs_tensor"),
    ),
)

_NONE = "NoneType"


def classify(miss: Miss) -> str | None:
    """The cause of a miss by a property of a tensor, or None when the guard is about something else."""
    guard = miss.guard
    if guard.prop == "requires_grad":
        return "requires_grad"
    if guard.prop == "dtype":
        return "dtype"
    if guard.prop == "dispatch":
        return "grad_mode" if _inference(str(guard.expected), str(guard.actual)) else "tensor_type"
    if guard.prop == "tensor_type":
        if guard.value_type == _NONE:
            return "per_layer_attr" if miss.on_module() and not miss.in_time() else "none_vs_tensor"
        return "tensor_type"
    if guard.prop == "none" and miss.argument() and "." not in guard.path:
        return "none_vs_tensor"
    if guard.prop in ("value", "type", "attribute", "contains") and miss.argument() and "." not in guard.path and guard.value_type == _NONE:
        return "none_vs_tensor"
    if guard.prop == "type" and guard.expected == _NONE and miss.argument():
        return "none_vs_tensor"
    return None


def _inference(expected: str, actual: str) -> bool:
    """True when only autograd's keys differ: the tensor was made in inference mode."""
    keys = [{k.strip() for k in text.removeprefix("DispatchKeySet(").rstrip(")").split(",")} for text in (expected, actual)]
    differing = keys[0] ^ keys[1]
    return bool(differing) and all(k == "ADInplaceOrView" or k.startswith("Autograd") for k in differing)
