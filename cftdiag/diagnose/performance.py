"""What costs time or memory without a break or a recompile, and results that are wrong."""

from __future__ import annotations

from cftdiag.diagnose import references as ref
from cftdiag.diagnose.cause import Cause, example
from cftdiag.findings import Remedy

#: From this many equal blocks in one graph on, compiling per block is clearly cheaper (24 toy blocks: 3.4 s against 0.24 s).
MANY_BLOCKS = 8

CAUSES = (
    Cause(
        key="silent_wrong_numerics",
        kinds=("numerics",),
        title="Compiled and eager results differ",
        what="Loss or gradients of the compiled model differ from eager by more than rounding: dropout masks that differ between forward and backward, a fused loss that is wrong when targets are ignored, a wrong custom backward.",
        why="Nothing raises; the loss curve drifts.",
        says="`{name}` differs between compiled and eager: {eager} eager, {compiled} compiled (relative {rel}){config}.",
        fix="Find the setting or the operator: keep the memory budget at 1.0 for blocks with dropout, use an unfused loss, test the custom backward with gradcheck.\n\n"
        "```python\ntorch._functorch.config.activation_memory_budget = 1.0\n```",
        references=(ref.torch_issue(190758), ref.torch_issue(190717), ref.issue("linkedin/Liger-Kernel", 1338)),
        remedies=(
            Remedy(
                summary="Keep torch._functorch.config.activation_memory_budget = 1.0 and use torch.utils.checkpoint, which keeps random state.",
                change={"torch._functorch.config.activation_memory_budget": 1.0},
            ),
            Remedy(summary="Use an unfused loss, or check the custom operator with torch.autograd.gradcheck."),
            Remedy(summary="Find the layer that is wrong: backend aot_eager, then inductor.", change={"compile_backend": "aot_eager"}),
        ),
        example=example("silent_wrong_numerics"),
    ),
    Cause(
        key="rank_divergent_recompile",
        kinds=("perf",),
        title="Ranks recompile at different steps",
        what="One rank meets a new shape and compiles while the others wait in a collective. It takes several ranks, so it has no example of one file.",
        why="Every rank pays every rank's compiles; a long one trips the process group's timeout.",
        says="Rank {rank} recompiled {code_name} at step {step} while {others} did not.",
        fix="Give all ranks the same shapes (pad to one length per step), or warm all shapes on all ranks first.\n\n"
        "```python\nlength = torch.tensor(x.shape[1], device=device)\ndist.all_reduce(length, op=dist.ReduceOp.MAX)     # pad every rank to it\n```",
        references=(ref.torch_issue(130935), ref.issue("karpathy/nanochat", 722), ref.torch_issue(108971)),
        remedies=(
            Remedy(summary="Pad all ranks to one length per step, or pack to a fixed number of tokens.", change={"pad_to_multiple_of": 128}),
            Remedy(summary="Warm every shape on every rank, in one order, before the first step."),
        ),
        example=example("rank_divergent_recompile"),
    ),
    Cause(
        key="compile_time_depth",
        kinds=("perf",),
        title="Many equal blocks are unrolled into one graph",
        what="The whole model is one compiled region: its equal blocks are inlined one after the other, and compile time grows with depth.",
        why="Minutes instead of seconds: compiled per block, one compile serves all layers.",
        says="{count} equal blocks are one graph{ops}; compiled per block one compile would serve all of them{seconds}.",
        fix="Compile block by block.\n\n```python\nfor block in model.layers:\n    block.compile(fullgraph=True, dynamic=True)\n```",
        references=(ref.issue("pytorch/torchtitan", 479), ref.issue("huggingface/accelerate", 3529)),
        remedies=(
            Remedy(summary="Compile per block: for block in model.layers: block.compile().", change={"compile_scope": "block"}),
            Remedy(summary="Mark the block with torch.compiler.nested_compile_region, so that it is compiled once inside the whole graph."),
        ),
        example=example("compile_time_depth"),
    ),
    Cause(
        key="saved_tensor_hooks_whole_graph",
        kinds=("perf",),
        title="Saved-tensor hooks act on the whole compiled block",
        what="`saved_tensors_hooks` (activation offloading) around a compiled block see one autograd node: everything is packed at once after the forward and unpacked at once before its backward.",
        why="Offloading saves no memory within the block, and the transfers do not overlap.",
        says="Hooks {hook} pack all tensors that `{block}` saves at once{counts}: within the compiled block nothing is saved.",
        fix="Recompute inside the block (checkpoint, selective AC) and offload at block boundaries only.\n\n"
        "```python\nblock = checkpoint_wrapper(block)                 # recompute inside, offload the block's input\n```",
        references=(ref.torch_issue(148222), ref.issue("meta-pytorch/torchtune", 2684)),
        remedies=(
            Remedy(summary="Use activation checkpointing in the block and offload only what passes between blocks.", change={"ac": "full"}),
            Remedy(summary="Compile smaller pieces than the hooks cover."),
        ),
        example=example("saved_tensor_hooks_whole_graph"),
    ),
    Cause(
        key="cache_miss",
        kinds=("perf",),
        title="The compile cache was bypassed",
        what="Inductor's or AOTAutograd's cache could not be used for a graph; torch names the reason (a higher-order operator such as a checkpoint, a custom pass).",
        why="Every start of the program compiles again.",
        says="{cache} was bypassed {count} time(s): {message}.",
        fix="Remove what torch names, or carry the compiled code over (mega-cache).\n\n```python\nartifacts = torch.compiler.save_cache_artifacts()\n```",
        references=(ref.torch_issue(189330), ref.RECOMPILATION),
        remedies=(
            Remedy(summary="Remove what bypasses the cache ({message})."),
            Remedy(summary="Reuse one process, or torch.compiler.save_cache_artifacts where it applies."),
        ),
        example=example("cache_miss"),
    ),
    Cause(
        key="cudagraph_skip",
        kinds=("perf",),
        title="CUDA graphs were skipped",
        what="mode='reduce-overhead' asked for CUDA graphs and Inductor skipped them (mutated inputs, dynamic shapes, CPU tensors). It takes a GPU, so it has no example here.",
        why="The launch overhead that the mode should remove stays.",
        says="CUDA graphs were skipped {count} time(s): {message}.",
        fix="Remove the cause that Inductor names, or drop the mode.\n\n```python\nblock.compile(dynamic=False)                      # fixed shapes, no mutated inputs\n```",
        references=("https://docs.pytorch.org/docs/main/user_guide/torch_compiler/torch.compiler_cudagraph_trees.html",),
        remedies=(
            Remedy(summary="Remove what Inductor names ({message})."),
            Remedy(summary="Drop mode='reduce-overhead'.", change={"compile_kwargs": {"mode": "default"}}),
        ),
        example=example("cudagraph_skip"),
    ),
    Cause(
        key="graph_runs_eager",
        kinds=("perf",),
        title="A compiled block runs eager",
        what="The block was compiled and called, but no compiled graph of it ever ran: its frame was skipped.",
        why="It costs what eager costs, and the log says it is compiled.",
        says="{blocks} ran without a single compiled graph.",
        fix="Look for a skipped frame; check with fullgraph=True, which raises instead of falling back.\n\n```python\nblock.compile(fullgraph=True)\n```",
        references=(ref.BREAKS, ref.issue("vllm-project/vllm", 27178)),
        remedies=(
            Remedy(summary="Compile with fullgraph=True to see the reason as an error.", change={"compile_kwargs": {"fullgraph": True}}),
            Remedy(summary="Remove torch.compiler.disable or set_stance('force_eager') around the block."),
        ),
        example=example("graph_runs_eager"),
    ),
)
