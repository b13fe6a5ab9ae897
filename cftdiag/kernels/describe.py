"""What `cftdiag kernels` reports: every kind of block lowered for a target at some lengths, its kernels,
library calls and changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from cftdiag import fastforward
from cftdiag.errors import InputError
from cftdiag.kernels import regime_changes
from cftdiag.kernels.code_findings import code_findings
from cftdiag.passes.messages import KernelsTask
from cftdiag.passes.prepare import Prepared, blocks_of, prepare
from cftdiag.recipe import BlockGroup, apply_recipe, block_groups
from cftdiag.target import bytecode, lowering, real, resources
from cftdiag.target.collect import Collector
from cftdiag.target.devices import Device, device
from cftdiag.target.records import Extern, Kernel, Lowered
from cftdiag.target.roofline import bound
from cftdiag.torch_private import compiled_call
from cftdiag.torch_private.tracing import tree_map_only
from cftdiag.torch_settings import torch_config

SCHEMA = "cftdiag.kernels/1"
#: The target that is the CUDA device of this machine.
HERE = "cuda"
Winners = Mapping[str, Mapping[str, int]]
Progress = Callable[[str], None]


def describe(task: KernelsTask, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Lower and describe; the JSON-ready report of schema ``cftdiag.kernels/1``.

    Raises :class:`~cftdiag.errors.InputError` for what the user can mend and `TargetUnavailable` where the
    target cannot be lowered for.
    """
    origin, options = task.origin, task.options
    started = time.monotonic()
    here = task.target == HERE
    spec = real.present() if here else device(task.target)
    progress("building the model")
    prepared = prepare(origin, options.with_(fast_forward="never" if here else "always"), None)
    blocks = blocks_of(prepared.subject.model, tuple(prepared.subject.blocks or ()) or options.subject.blocks)
    groups = _wanted(block_groups(prepared.subject.model, blocks), task.block)
    with torch_config(options.patch.torch_config):
        graphs, frames, winners = _lower(prepared, blocks, groups, task, progress)
    lowered_in = time.monotonic() - started
    compiled: dict[str, resources.Compiled] = {}
    if spec is not None and task.compile_kernels:
        progress("compiling Triton kernels")
        compiled = resources.compile_all(task.target, [k for _, g in graphs for k in g.kernels])
    members = {group.label: tuple(group.fqns) for group in groups}
    return {
        "schema": SCHEMA,
        "model": origin.name,
        "target": task.target,
        "device": dataclasses.asdict(spec) if spec else None,
        "predicted": not here,
        "shapes": [{"batch_size": b, "length": n} for b, n in prepared.shapes],
        "environment": {name: _version(name) for name in ("torch", "transformers", "triton", "cftdiag")},
        "blocks": [
            {
                "kind": group.label,
                "class": group.cls,
                "fqns": list(group.fqns),
                "graphs": [
                    _graph(g, spec, compiled, won, task.with_source)
                    for (label, g), won in zip(graphs, winners, strict=True)
                    if label == group.label
                ],
                "changes": _changes([g for label, g in graphs if label == group.label]),
            }
            for group in groups
        ],
        "findings": [
            f.to_dict() for f in code_findings([(members[label], g) for label, g in graphs], compiled)
        ],
        "bytecode": frames,
        "assumptions": [] if here else lowering.assumptions(task.target),
        "seconds": {"lowering": lowered_in, "total": time.monotonic() - started},
    }


def _wanted(groups: Sequence[BlockGroup], block: str | None) -> list[BlockGroup]:
    if block is None:
        return list(groups)

    def matches(group: BlockGroup) -> bool:
        # a label holds square brackets (Gemma3DecoderLayer[sliding_attention]), which a glob would read as a
        # set
        return block == group.label or any(
            fnmatch.fnmatchcase(name, block) for name in (group.cls, group.label, *group.fqns)
        )

    found = [group for group in groups if matches(group)]
    if not found:
        raise InputError(f"no block matches {block!r}; kinds are {', '.join(g.label for g in groups)}")
    return found


def _lower(
    prepared: Prepared,
    blocks: Sequence[tuple[str, torch.nn.Module]],
    groups: Sequence[BlockGroup],
    task: KernelsTask,
    progress: Progress,
) -> tuple[list[tuple[str, Lowered]], list[dict[str, Any]], list[Winners]]:
    """(kind of block, graph) in order, frames of Dynamo, and for each graph which configurations autotuning
    picked (none offline).
    """
    graphs: list[tuple[str, Lowered]] = []
    of_compile: dict[str | None, str] = {}
    first = {
        group.fqns[0]: group.label for group in groups
    }  # one block of each kind: the others share its code
    current = [""]

    def on_graph(graph: Lowered) -> None:
        label = (
            of_compile.get(graph.compile_id, current[0])
            if graph.backward
            else of_compile.setdefault(graph.compile_id, current[0])
        )
        graphs.append((label, graph))

    reader = real.Reader()
    here = task.target == HERE
    backend: Any = "inductor" if here else lowering.backend(task.target, on_graph=on_graph)
    kwargs = {
        "dynamic": True,
        **{
            k: v
            for k, v in prepared.compile_kwargs.items()
            if k in ("dynamic", "fullgraph", "isolate_recompiles")
        },
    }

    def compile_block(module: torch.nn.Module, name: str) -> None:
        if name not in first:
            return
        module.compile(backend=backend, **kwargs)

        def around(call: compiled_call.Call, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
            current[0] = first[name]
            return call(*args, **kw)

        compiled_call.wrap(module, around)

    model = prepared.subject.model
    with contextlib.ExitStack() as stack:
        frames = stack.enter_context(bytecode.recorded()) if task.with_bytecode else []
        if here:
            model.cuda()
            stack.enter_context(reader.reading(Collector(HERE, on_graph)))
        else:
            fastforward.reset()
            stack.enter_context(fastforward.SkipMode())
        program = apply_recipe(model, list(blocks), prepared.training, compile=compile_block)
        for (rows, length), batch in zip(prepared.shapes, prepared.subject.batches, strict=True):
            progress(f"lowering for {task.target}: batch {rows}, length {length}")
            batch = tree_map_only(torch.Tensor, torch.Tensor.cuda, dict(batch)) if here else dict(batch)
            if prepared.step is not None:
                prepared.step(model, batch)
            else:
                program.step(batch)
            program.zero_grad()
    return graphs, list(frames), [reader.winners(i) if here else {} for i in range(len(graphs))]


def _changes(graphs: Sequence[Lowered]) -> list[dict[str, Any]]:
    found = []
    for backward in (False, True):
        row = [g for g in graphs if g.backward is backward]
        found += [regime_changes.changes(a, b) for a, b in itertools.pairwise(row)]
    return found


def _graph(
    graph: Lowered,
    spec: Device | None,
    compiled: Mapping[str, resources.Compiled],
    winners: Winners,
    with_source: bool,
) -> dict[str, Any]:
    return {
        "compile_id": graph.compile_id,
        "direction": "backward" if graph.backward else "forward",
        "sizes": dict(graph.sizes),
        "peak_bytes": graph.peak_bytes,
        "code": graph.code if with_source else None,
        "kernels": [
            _kernel(k, spec, compiled.get(k.source), winners.get(k.name), with_source) for k in graph.kernels
        ],
        "externs": [_extern(e, spec) for e in graph.externs],
        "splits": [dataclasses.asdict(s) for s in graph.splits],
        "items": [dataclasses.asdict(w) for w in graph.items],
    }


def _kernel(
    kernel: Kernel,
    spec: Device | None,
    compiled: resources.Compiled | None,
    winner: Mapping[str, int] | None,
    with_source: bool,
) -> dict[str, Any]:
    needs = dataclasses.asdict(compiled) if compiled else None
    for configuration in needs["configurations"] if needs and winner else ():
        configuration["winner"] = configuration["settings"] == dict(winner or {})
    return {
        "name": kernel.name,
        "category": kernel.category,
        "aten": list(kernel.aten),
        "lines": [dataclasses.asdict(w) for w in kernel.lines],
        "sizes": {
            name: {"symbolic": symbolic, "hint": size} for name, (symbolic, size) in kernel.numels.items()
        },
        "read_bytes": sum(kernel.reads.values()),
        "write_bytes": sum(kernel.writes.values()),
        "flops": kernel.flops,
        "roofline": dataclasses.asdict(bound(spec, flops=kernel.flops, bytes_moved=kernel.bytes))
        if spec
        else None,
        "compiled": needs,
        "source": kernel.source if with_source else None,
    }


def _extern(extern: Extern, spec: Device | None) -> dict[str, Any]:
    data = dataclasses.asdict(extern)
    data["roofline"] = None
    if spec is not None and extern.flops is not None:
        data["roofline"] = dataclasses.asdict(
            bound(spec, flops=extern.flops, bytes_moved=extern.bytes, tensor_cores=True)
        )
    return data


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
