"""Costs in generated kernels, which `cftdiag kernels` reads from the compiled code; they never change a
verdict.
"""

from __future__ import annotations

from cftdiag.diagnose.engine.cause import cause
from cftdiag.findings import Remedy

_SEEN_BY = "cftdiag kernels --model FILE.py:build --target h200"

CAUSES = (
    cause(
        "kernel_spills",
        says="A kernel needs more registers than a thread has, so values go to memory and back.",
        kinds=("perf",),
        seen_by=_SEEN_BY,
        remedies=(
            Remedy(summary="None where some configurations do not spill: autotuning takes the fastest."),
            Remedy(
                summary="Offer autotuning more configurations: torch._inductor.config.max_autotune_pointwise = True."
            ),
            Remedy(
                summary="Fuse less: torch._inductor.config.max_fusion_size (64) bounds the nodes of a kernel, 1 fuses none."
            ),
        ),
    ),
    cause(
        "kernel_scalar_access",
        says="No configuration of a large kernel reads or writes 64 bits or more at a time, so the memory bus is not filled.",
        kinds=("perf",),
        seen_by=_SEEN_BY,
        remedies=(
            Remedy(
                summary="Pad the sequence length to a multiple of 16, so that rows stay aligned.",
                change={"pad_to_multiple_of": 16},
                applicability="changes_numbers",
            ),
            Remedy(summary="Make the innermost dimension of the tensors a multiple of 16, or contiguous."),
        ),
    ),
    cause(
        "kernel_fp64",
        says="Double precision in a kernel: a Python float became a runtime scalar (with dynamic=True a module's eps does), or a tensor is float64.",
        kinds=("perf",),
        seen_by=_SEEN_BY,
        remedies=(
            Remedy(
                summary="Specialise Python floats: torch._dynamo.config.specialize_float = True.",
                change={"torch._dynamo.config.specialize_float": True},
                applicability="safe",
            ),
            Remedy(
                summary="Leave dynamic at torch's default: a float that never changes stays a constant.",
                change={"dynamic": "auto"},
                applicability="safe",
            ),
            Remedy(summary="Keep tensors in float32 or below."),
        ),
    ),
    cause(
        "reduction_split",
        says="The reduced dimension is long and the rows are few, so Inductor reduces in two kernels to fill the device.",
        kinds=("perf",),
        seen_by=_SEEN_BY,
        remedies=(Remedy(summary="None needed: one kernel would leave most of the device idle."),),
    ),
)
