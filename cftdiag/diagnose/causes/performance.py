"""What costs time or memory without a break or a recompile, and results that are wrong."""

from __future__ import annotations

from cftdiag.diagnose.engine.cause import cause
from cftdiag.findings import Remedy

#: From this many equal blocks in one graph on, compiling per block is clearly cheaper (24 toy blocks: 3.4 s
#: against 0.24 s).
MANY_BLOCKS = 8

CAUSES = (
    cause(
        "silent_wrong_numerics",
        says="`{name}` differs between compiled and eager: its norm is {eager} eager, {compiled} compiled, "
        "the difference {rel} of eager's{config}.",
        kinds=("numerics",),
        remedies=(
            Remedy(
                summary="Keep torch._functorch.config.activation_memory_budget = 1.0 and use torch.utils.checkpoint, which keeps random state.",
                change={"torch._functorch.config.activation_memory_budget": 1.0},
                applicability="safe",
            ),
            Remedy(
                summary="Let Inductor round and add up as eager does, at the cost of some speed: "
                "torch._inductor.config.numerics = 'strict' (or TORCHINDUCTOR_NUMERICS=strict). It helps where rounding "
                "is all that differs.",
                change={"torch._inductor.config.numerics": "strict"},
                applicability="safe",
            ),
            Remedy(
                summary="Where the code asks torch.compiler.is_compiling(): let both ways compute the same."
            ),
            Remedy(
                summary="Find the layer that is wrong: backend eager, then aot_eager, then inductor.",
                edit="--compile-backend eager",
                applicability="diagnosis",
            ),
            Remedy(
                summary="Find the part that is wrong: compile without it (an unfused loss, one block eager), and check a custom "
                "operator with torch.autograd.gradcheck.",
                applicability="diagnosis",
            ),
        ),
    ),
    cause(
        "known_wrong_code",
        says="The code generated here computes wrong results, a bug of torch {versions} ({issue}): {pattern}.",
        kinds=("numerics",),
        seen_by="cftdiag check --model FILE.py:build --target h200",
        remedies=(Remedy(summary="Train with torch {fixed} or later, which has the bug mended."),),
    ),
    cause(
        "rank_divergent_recompile",
        says="Rank {rank} recompiled {code_name} at step {step} while {others} did not.",
        kinds=("perf", "error"),
        remedies=(
            Remedy(
                summary="Pad all ranks to one length per step, or pack to a fixed number of tokens.",
                change={"pad_to_multiple_of": 128},
                applicability="changes_numbers",
            ),
            Remedy(summary="Warm every shape on every rank, in one order, before the first step."),
        ),
    ),
    cause(
        "compile_time_depth",
        says="{count} equal blocks are one graph{ops}; compiled per block one compile would serve all of them{seconds}.",
        kinds=("perf",),
        remedies=(
            Remedy(
                summary="Compile per block: for block in model.layers: block.compile().",
                change={"compile_scope": "block"},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "saved_tensor_hooks_whole_graph",
        says="Hook {hook} is given all tensors that a compiled block saves at once, after its forward, and gives all back "
        "before its backward: it saves no memory within the block.",
        kinds=("perf",),
        remedies=(
            Remedy(
                summary="Use activation checkpointing in the block and offload only what passes between blocks.",
                change={"ac": "full"},
                applicability="safe",
            ),
            Remedy(summary="Compile smaller pieces than the hooks cover."),
        ),
    ),
    cause(
        "cache_miss",
        says="{cache} was bypassed {count} time(s): {message}.",
        kinds=("perf",),
        remedies=(
            Remedy(summary="Remove what bypasses the cache ({message})."),
            Remedy(summary="Reuse one process, or torch.compiler.save_cache_artifacts where it applies."),
        ),
    ),
    cause(
        "cudagraph_skip",
        says="CUDA graphs were skipped {count} time(s): {message}.",
        kinds=("perf",),
        remedies=(
            Remedy(summary="Remove what Inductor names ({message})."),
            Remedy(
                summary="Drop mode='reduce-overhead'.",
                change={"compile_kwargs": {"mode": "default"}},
                applicability="safe",
            ),
        ),
    ),
    cause(
        "graph_runs_eager",
        says="{blocks} ran without a single compiled graph.",
        kinds=("perf",),
        remedies=(
            Remedy(
                summary="Compile with fullgraph=True to see the reason as an error.",
                edit="block.compile(fullgraph=True)",
                applicability="diagnosis",
            ),
            Remedy(summary="Remove torch.compiler.disable or set_stance('force_eager') around the block."),
        ),
    ),
)
