"""Graph breaks in a region that cannot be split: a checkpoint, an autograd.Function, a hook."""

from __future__ import annotations

import re

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.events import Event
from cftdiag.findings import Remedy

CAUSES = (
    Cause(
        key="graph_break_in_checkpoint",
        kinds=("graph_break",),
        title="A graph break inside activation checkpointing",
        what="The compiled block contains `torch.utils.checkpoint`, and the checkpointed function breaks the graph. A checkpoint is one operator to Dynamo and cannot be resumed in the middle.",
        why="Not only the broken line: the whole frame that holds the checkpoint falls back to eager.",
        says="`{code}` breaks the graph inside a checkpointed function ({inner}); the whole checkpoint then runs eager.",
        fix="Remove the break inside the checkpoint; or compile what is inside the checkpoint instead of what is around it.\n\n"
        "```python\nblock.inner.compile()                            # checkpoint(compiled), not compile(checkpoint)\n```",
        references=(ref.CHECKPOINT, ref.issue("pytorch/torchtitan", 1895), ref.gb("0098")),
        remedies=(
            Remedy(summary="Remove the break itself ({inner})."),
            Remedy(
                summary="Let torch capture scalars and data-dependent shapes, if that is what breaks.",
                change={"torch._dynamo.config.capture_scalar_outputs": True, "torch._dynamo.config.capture_dynamic_output_shape_ops": True},
            ),
            Remedy(summary="Checkpoint around the compiled block: order AC -> compile -> FSDP2, with the checkpoint wrapper outside."),
        ),
        example=example("graph_break_in_checkpoint"),
    ),
    Cause(
        key="autograd_function",
        kinds=("graph_break",),
        title="An autograd.Function that cannot be traced",
        what="A custom `torch.autograd.Function` does something in forward or backward that Dynamo cannot trace (a host read, a side effect, foreign code). Dynamo traces both when it meets `apply`.",
        why="The function falls out of the graph, forward and backward; what it fuses is lost.",
        says="`{code}` applies an autograd.Function that Dynamo cannot trace: {inner}.",
        fix="Make it a custom op with its own backward, or keep only traceable code in forward and backward.\n\n"
        '```python\n@torch.library.custom_op("mine::scale", mutates_args=())\ndef scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor: ...\n\n'
        "scale.register_autograd(backward, setup_context=setup)\n```",
        references=(ref.CUSTOM_OPS, ref.torch_issue(125489), ref.issue("linkedin/Liger-Kernel", 174)),
        remedies=(
            Remedy(
                summary="Let torch capture scalars, if a host read is all that breaks.", change={"torch._dynamo.config.capture_scalar_outputs": True}
            ),
            Remedy(summary="Register it as a custom op: torch.library.custom_op with register_fake and register_autograd."),
            Remedy(summary="Keep only traceable code in its forward and backward ({inner})."),
        ),
        example=example("autograd_function"),
        captured_by_fullgraph=True,
    ),
    Cause(
        key="disabled_hook",
        kinds=("graph_break",),
        title="A module hook is disabled for compilation",
        what="A module inside the compiled block has a forward hook that is wrapped in `torch.compiler.disable`: FSDP2 on an inner module, accelerate's offloading, an observer.",
        why="The graph is split around the hook at every call; fullgraph=True refuses it.",
        says="`{code}` calls a module whose hook {function} is disabled for compilation{reason}.",
        fix="Wrap at block granularity only, so that hooks stay outside the compiled forward.\n\n"
        "```python\nblock.compile()\nfully_shard(block)               # the block, not modules inside it\n```",
        references=(ref.MODULES, ref.torch_issue(181924), ref.issue("huggingface/accelerate", 3888), ref.gb("0098")),
        remedies=(
            Remedy(summary="Put the hook (or fully_shard) on the block itself, not on a module inside it."),
            Remedy(summary="Compile the inner modules without hooks and leave the hooked one eager."),
            Remedy(summary="Remove torch.compiler.disable from the hook if Dynamo can trace it."),
        ),
        example=example("disabled_hook"),
    ),
    Cause(
        key="module_backward_hook",
        kinds=("graph_break",),
        title="A backward hook on a module inside the block",
        what="`register_full_backward_hook` (or the pre-hook) on a module in compiled code needs compiled autograd.",
        why="The graph ends before the hooked module and starts anew behind it.",
        says="`{code}` calls a module with a backward hook; that needs compiled autograd.",
        fix="Use a tensor hook, hook the block from outside, or switch compiled autograd on.\n\n"
        "```python\ny = self.linear(x)\nif y.requires_grad:\n    y.register_hook(observe)\n```",
        references=(ref.MODULES, ref.gb("0083")),
        remedies=(
            Remedy(
                summary="Register the hook on the compiled block itself, outside the compiled forward, or on a parameter (post_accumulate_grad_hook)."
            ),
            Remedy(
                summary="Switch compiled autograd on: torch._dynamo.config.compiled_autograd = True.",
                change={"torch._dynamo.config.compiled_autograd": True},
            ),
        ),
        example=example("module_backward_hook"),
    ),
)

_HOOK = re.compile(r"\bhook\(")


def classify(event: Event) -> str | None:
    """The cause of a break by the region it is in, or None when the region does not matter."""
    detail = event.detail
    operator = str(detail.get("operator") or detail.get("hop") or "")
    if detail.get("in_checkpoint") or "checkpoint" in operator:
        return "graph_break_in_checkpoint"
    if detail.get("in_autograd_function") or "autograd.Function" in operator or "autograd.Function" in str(detail.get("gb_type") or ""):
        return "autograd_function"
    if detail.get("gb_id") in ("GB0083", "GB0029"):
        return "module_backward_hook"
    if detail.get("gb_id") in ("GB0098", "GB0099") and in_hook(event):
        return "disabled_hook"
    return None


def in_hook(event: Event) -> bool:
    """True when the break happened in or at the call of a module's hook."""
    return any("torch/nn/modules/module.py" in (f.file or "") and _HOOK.search(f.code or "") for f in event.stack)
