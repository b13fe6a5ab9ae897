"""Reads off Inductor, while it generates code, which operators and lines each kernel computes and how much it
moves.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils.flop_counter import flop_registry

from cftdiag.findings import Where
from cftdiag.target.records import Extern, Kernel, Lowered, Split
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.inductor import (
    CppScheduling,
    Placeholder,
    Reduction,
    TritonScheduling,
    V,
    WelfordReduction,
    hint,
    planned_peak,
)
from cftdiag.torch_private.tracing import OpOverload, local_scalar_dense

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
#: Parts of a loop body that are no arithmetic.
_NOT_ARITHMETIC = {
    "load", "load_seed", "store", "store_reduction", "get_index", "index_expr", "constant", "to_dtype", "to_dtype_bitcast", "indirect_indexing",
    "check_bounds", "output", "masked", "device_assert_async", "partial_accumulate",
}  # fmt: skip


def lines_of(nodes: Iterable[torch.fx.Node]) -> tuple[Where, ...]:
    """The innermost line outside torch of each node, each line once, in order."""
    found: dict[tuple[str, int], Where] = {}
    for n in nodes:
        frames = _FRAME.findall(n.meta.get("stack_trace") or "")
        for file, line, function in reversed(frames):
            if not file.startswith(_TORCH):
                code = linecache.getline(file, int(line)).strip() or None
                found.setdefault(
                    (file, int(line)), Where(file=file, line=int(line), function=function, code=code)
                )
                break
    return tuple(found.values())


class Collector:
    """Collects while `watching`, and hands a :class:`Lowered` for every graph to ``on_graph``."""

    def __init__(self, target: str, on_graph: Callable[[Lowered], None]) -> None:
        self.target, self.on_graph = target, on_graph
        self._kernels: list[Kernel] = []
        self._splits: list[Split] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Active while a graph is lowered."""
        with contextlib.ExitStack() as stack:
            for scheduling in (TritonScheduling, CppScheduling):
                stack.enter_context(
                    mock.patch.object(scheduling, "define_kernel", self._defining(scheduling.define_kernel))
                )
            for kind in (Reduction, WelfordReduction):
                stack.enter_context(
                    mock.patch.object(
                        kind,
                        "create_multilayer",
                        classmethod(self._splitting(kind.create_multilayer.__func__)),
                    )
                )
            yield

    def _defining(self, real: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(real)
        def define_kernel(scheduling: Any, source: str, nodes: Any, *args: Any) -> str:
            name = real(scheduling, source, nodes, *args)
            # a Triton kernel object knows its sizes and buffers; the C++ backend passes the argument names or
            # nothing
            self._kernels.append(
                _kernel(name, source, list(nodes), args[0] if args and hasattr(args[0], "numels") else None)
            )
            return name

        return define_kernel

    def _splitting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def create_multilayer(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            node = V.get_current_node()
            self._splits.append(
                Split(
                    reduction=str(given.get("reduction_type", "welford")),
                    parts=str(given.get("split")),
                    lines=lines_of([node] if isinstance(node, torch.fx.Node) else []),
                )
            )
            return real(*args, **kwargs)

        return create_multilayer

    def on_code(self, graph: Any, text: str) -> None:
        """Called by `codegen.keep_code` when the text of ``graph`` (a ``GraphLowering``) is complete."""
        kernels, self._kernels = tuple(self._kernels), []
        splits, self._splits = tuple(dict.fromkeys(self._splits)), []
        nodes = [n for n in graph.module.graph.nodes if n.op == "call_function"]
        self.on_graph(
            Lowered(
                target=self.target,
                backward=bool(graph.is_backward),
                compile_id=dynamo.current_compile_id(),
                code=text,
                kernels=kernels,
                externs=tuple(filter(None, map(_extern, graph.scheduler.nodes))),
                splits=splits,
                sizes={str(s): hint(s) for s in _symbols(graph)},
                items=lines_of(n for n in nodes if n.target is local_scalar_dense.default),
                peak_bytes=planned_peak(graph),
            )
        )


def _symbols(graph: Any) -> list[Any]:
    found: dict[str, Any] = {}
    for value in graph.graph_inputs.values():
        for part in [value] if not hasattr(value, "get_size") else value.get_size():
            for symbol in getattr(part, "free_symbols", ()):
                found[str(symbol)] = symbol
    return [found[name] for name in sorted(found)]


def _leaves(nodes: Iterable[Any]) -> list[Any]:
    """Scheduler nodes with a loop body or a template, fused groups and mixed-order pairs taken apart."""
    found = []
    for node in nodes:
        inner = getattr(node, "snodes", None)
        if inner:
            found += _leaves(inner)
        elif getattr(node, "node", None) is not None:
            found.append(node)
    return found


def _origins(nodes: Iterable[Any]) -> list[torch.fx.Node]:
    found = {
        o
        for node in nodes
        for o in node.node.get_origins()
        if isinstance(o, torch.fx.Node) and o.op == "call_function"
    }
    order = {n: i for i, n in enumerate(next(iter(found)).graph.nodes)} if found else {}
    return sorted(found, key=lambda n: order.get(n, 0))


def _aten(origins: Iterable[torch.fx.Node]) -> tuple[str, ...]:
    names = []
    for n in origins:
        names.append(_name(n.meta.get("original_aten") or n.target))
    return tuple(dict.fromkeys(names))


def _name(operator: Any) -> str:
    packet = getattr(operator, "overloadpacket", operator)
    return str(getattr(packet, "_qualified_op_name", packet)).replace("::", ".")


def _kernel(name: str, source: str, nodes: list[Any], kernel: Any) -> Kernel:
    leaves = _leaves(nodes)
    origins = _origins(leaves)
    numels = {}
    category = "cpp"
    if kernel is not None:
        numels = {f"{prefix}numel": (str(size), hint(size)) for prefix, size in kernel.numels.items()}
        category = (_HEURISTIC.findall(source) or ["unknown"])[0]
    materialised = _materialised(kernel)
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for node in leaves:
        for into, which in (
            (reads, {"include_reads": True, "include_writes": False}),
            (writes, {"include_reads": False, "include_writes": True}),
        ):
            for buffer, size in node.get_read_write_buffer_accesses(**which).items():
                if materialised is None or buffer in materialised:
                    into[buffer] = max(into.get(buffer, 0), int(size))
    for buffer in set(reads) & set(writes):
        # made in this kernel and used in it: the value is still in a register
        if buffer not in _mutated(leaves):
            del reads[buffer]
    # what Inductor itself fills in last, when it writes the kernel into the module
    source = (
        source.replace(str(Placeholder.DESCRIPTIVE_NAME), name)
        .replace(str(Placeholder.KERNEL_NAME), name)
        .replace("#pragma CMT", "#")
    )
    return Kernel(
        name=name, category=category, source=source, aten=_aten(origins), lines=lines_of(origins), numels=numels, reads=reads, writes=writes,
        flops=sum(map(_flops, leaves)),
    )  # fmt: skip


def _materialised(kernel: Any) -> set[str] | None:
    """Buffers that are arguments of the kernel, the others never leave it; None where the backend does not
    say.
    """
    args = getattr(kernel, "args", None)
    if args is None:
        return None
    removed = {str(name) for name in getattr(kernel, "removed_buffers", ())} | {
        str(name) for name in V.graph.removed_buffers
    }
    names = {*args.input_buffers, *args.output_buffers}
    for shared in args.inplace_buffers.values():
        names |= set(getattr(shared, "other_names", ()))
    return {str(name) for name in names} - removed


def _mutated(leaves: list[Any]) -> set[str]:
    return {name for node in leaves for name in node.node.get_mutation_names()}


def _flops(node: Any) -> int:
    body = getattr(node, "_body", None)
    if body is None:
        return int(node.estimate_flops() or 0)
    blocks = [body.root_block, *body.subblocks.values()]
    operations = sum(
        n.op == "call_method" and str(n.target) not in _NOT_ARITHMETIC
        for block in blocks
        for n in block.graph.nodes
    )
    size = 1
    for ranges in node.get_ranges():
        for extent in ranges:
            size *= hint(extent)
    return operations * size


def _extern(node: Any) -> Extern | None:
    if not node.is_extern():
        return None
    kernel = node.node
    call = getattr(kernel, "python_kernel_name", None) or type(kernel).__name__
    origins = _origins([node])
    if not hasattr(kernel, "python_kernel_name") or type(kernel).__name__ == "MultiOutput":
        return None
    overload = getattr(kernel, "op_overload", None)
    op = _name(overload) if isinstance(overload, OpOverload) else (_aten(origins) or (str(call),))[0]
    flops = node.estimate_flops()
    if flops is None:
        flops = next(filter(None, (_formula(n) for n in origins if n.target is overload)), None)
    return Extern(
        op=op,
        call=str(call),
        flops=flops,
        bytes=int(node.get_read_write_buffers_sizes()),
        lines=lines_of(origins),
    )


def _formula(node: torch.fx.Node) -> int | None:
    """FLOPs by torch's formula for an operator of several outputs, which Inductor does not count: attention,
    nothing taken off for a causal mask.
    """
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])  # type: ignore[misc]
    flops = count(*args, **kwargs, out_val=node.meta["val"])
    return hint(flops.node.expr) if isinstance(flops, torch.SymInt) else int(flops)
