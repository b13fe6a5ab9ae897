"""Inductor as it is read: its settings, its compilers, and the objects that describe a kernel."""

from __future__ import annotations

from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_LOWER = "Inductor cannot lower for an absent device (--target)"
_KERNELS = "kernels cannot be described (cftdiag kernels)"
_HERE = "kernels cannot be read on the device that is here (--target cuda)"

NAMES = (
    Name("torch._inductor:config", "codegen for the CPU", _LOWER),
    Name(
        "torch._inductor.compile_fx:compile_fx", "codegen for the CPU", _LOWER, parameters=("inner_compile",)
    ),
    Name("torch._inductor.compile_fx:compile_fx_inner", "codegen for the CPU", _LOWER),
    Name("torch._inductor.graph:GraphLowering", "codegen for the CPU", _LOWER),
    Name("torch._inductor.graph:GraphLowering.codegen", "kernels", _HERE, leading=("self",)),
    Name("torch._inductor.graph:GraphLowering._compile_to_module", "kernels", _HERE, leading=("self",)),
    Name("torch._inductor.virtualized:V", "kernels", _KERNELS),
    Name(
        "torch._inductor.codegen.triton:TritonScheduling.define_kernel",
        "kernels",
        _KERNELS,
        alias="triton_define_kernel",
        leading=("self", "src_code", "node_schedule"),
    ),
    Name("torch._inductor.codegen.triton:TritonScheduling", "kernels", _KERNELS),
    Name("torch._inductor.codegen.cpp:CppScheduling", "kernels", _KERNELS),
    Name(
        "torch._inductor.codegen.cpp:CppScheduling.define_kernel",
        "kernels",
        _KERNELS,
        alias="cpp_define_kernel",
        leading=("self", "src_code", "nodes"),
    ),
    Name("torch._inductor.ir:Reduction", "kernels", _KERNELS),
    Name(
        "torch._inductor.ir:NonOwningLayout",
        "codegen for the CPU",
        "code with a known bug of torch is not recognised",
    ),
    Name("torch._inductor.ir:WelfordReduction", "kernels", _KERNELS),
    Name(
        "torch._inductor.ir:Reduction.create_multilayer",
        "kernels",
        "split reductions are not told",
        parameters=("reduction_type", "split"),
        differs="2.14: + strict_sum, which 2.15 calls strict_reduction; passed on as they come",
    ),
    Name(
        "torch._inductor.ir:WelfordReduction.create_multilayer",
        "kernels",
        "split reductions are not told",
        alias="welford_create_multilayer",
        parameters=("split",),
    ),
    Name("torch._inductor.utils:Placeholder.DESCRIPTIVE_NAME", "kernels", _KERNELS),
    Name("torch._inductor.utils:Placeholder", "kernels", _KERNELS),
    Name(
        "torch._inductor.memory:prepare_planning_info",
        "kernels",
        "a graph's peak of memory is not told",
        leading=("nodes", "name_to_buf", "name_to_fused_node", "graph_inputs", "graph_outputs"),
        needed=False,
    ),
    Name("torch._inductor.codecache:PyCodeCache.load", "kernels", _KERNELS, leading=("cls", "source_code")),
    Name("torch._inductor.codecache:PyCodeCache", "kernels", _KERNELS),
    Name("torch._inductor.runtime.triton_heuristics:CachingAutotuner", "kernels", _KERNELS),
    Name(
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config",
        "kernels",
        "registers, spills and shared memory of a kernel are not known",
        leading=("self", "cfg"),
        differs="2.14: + cc_override=, left at its default",
    ),
    Name(
        "torch._inductor.utils:get_device_tflops",
        "kernels",
        "the peak rate of a device outside the table is not known",
        leading=("dtype",),
        needed=False,
        differs="2.15: + device=, left at its default",
    ),
    Name(
        "torch._inductor.utils:get_gpu_dram_gbps",
        "kernels",
        "the bandwidth of a device outside the table is not known",
        needed=False,
    ),
    Name("torch._dynamo:device_interface", "codegen for a GPU", _LOWER),
    Name("torch._dynamo.device_interface:CudaInterface", "codegen for a GPU", _LOWER),
    Name("torch._dynamo.device_interface:device_interfaces", "codegen for a GPU", _LOWER),
    Name(
        "torch._dynamo.device_interface:get_interface_for_device",
        "codegen for a GPU",
        _LOWER,
        leading=("device",),
    ),
    Name(
        "torch.amp:autocast_mode._enter_autocast",
        "codegen for a GPU",
        "autocast inside a block stays on the CPU when the block is moved to the target",
    ),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def precompile(tuner: Any, configuration: Any) -> Any:
    """Compile one configuration of a kernel without launching it; the result has ``kernel``, Triton's."""
    return tuner._precompile_config(configuration)


def hint(expression: Any) -> int:
    """A symbolic size at the sizes that were traced; 1 for what no input determines."""
    sizevars = _NAMES["V"].get().graph.sizevars
    # size_hint is its older name
    evaluate = getattr(sizevars, "optimization_hint", None) or sizevars.size_hint
    return int(evaluate(expression, fallback=1))


def planned_peak(graph: Any) -> int | None:
    """Inductor's own estimate, in bytes, of the peak of a lowered graph's buffers, inputs included; None where
    this torch has none.
    """
    try:
        plan = _NAMES["prepare_planning_info"].find()
    except LookupError:
        return None
    scheduler, ordered = graph.scheduler, type(graph.removed_buffers)
    inputs, outputs = ordered(graph.graph_inputs), ordered(graph.get_output_names())
    peak, _ = plan(scheduler.nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, inputs, outputs)
    return int(peak)
