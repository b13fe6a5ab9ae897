"""Findings that the generated code alone gives: spills, narrow accesses, double precision, split reductions, waiting for the device. Torch-free.

All are ``perf`` and ``info``: they cost time and never the verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cftdiag.findings import Finding, Remedy, Where
from cftdiag.target.records import Kernel, Lowered

if TYPE_CHECKING:
    from cftdiag.target.resources import Compiled

#: Kernels that move less than this are bounded by their launch, whatever their accesses are.
SMALL_BYTES = 1 << 20
_DOC = "docs/targets.md#findings-from-the-code"


def code_findings(graphs: Sequence[tuple[tuple[str, ...], Lowered]], compiled: Mapping[str, Compiled]) -> list[Finding]:
    """Findings of ``(blocks, graph)`` pairs; ``compiled`` maps a kernel's source to what it needs (missing for the CPU target)."""
    found: dict[tuple[str, Where], Finding] = {}
    for blocks, graph in graphs:
        for finding in (*_of_kernels(blocks, graph, compiled), *_of_graph(blocks, graph)):
            key = (finding.cause, finding.where)
            if key in found:
                finding = _merged(found[key], finding)
            found[key] = finding
    return sorted(found.values(), key=lambda f: (f.cause, f.where.file or "", f.where.line or 0))


def _merged(a: Finding, b: Finding) -> Finding:
    return dataclasses.replace(
        a,
        count=a.count + b.count,
        blocks=tuple(dict.fromkeys((*a.blocks, *b.blocks))),
        evidence=tuple(dict.fromkeys((*a.evidence, *b.evidence))),
    )


def _of_kernels(blocks: tuple[str, ...], graph: Lowered, compiled: Mapping[str, Compiled]) -> Iterable[Finding]:
    for kernel in graph.kernels:
        needs = compiled.get(kernel.source)
        if needs is None:
            continue
        way = "backward" if graph.backward else "forward"
        usages = [c.usage for c in needs.configurations]
        spilling = [u for u in usages if u.spill_stores or u.spill_loads]
        if spilling:
            worst = max(spilling, key=lambda u: u.stack)
            yield _finding(
                "kernel_spills",
                kernel,
                blocks,
                f"{kernel.name} ({way}): {len(spilling)} of {len(usages)} configurations spill, at most {worst.stack} bytes a thread",
                "registers do not suffice, so values go to memory and back",
                "let autotuning choose among more configurations (TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE=1), or split the fused expression",
            )
        if kernel.bytes >= SMALL_BYTES and all(u.widest < 64 for u in usages):
            loose = ", ".join(needs.unaligned) or "none"
            yield _finding(
                "kernel_scalar_access",
                kernel,
                blocks,
                f"{kernel.name} ({way}): {kernel.bytes / 1e6:.1f} MB in accesses of at most {max(u.widest for u in usages)} bits; "
                f"arguments not known to be divisible by 16: {loose}",
                "no configuration reads or writes 64 bits or more at a time, so the memory bus is not filled",
                "pad the sequence length to a multiple of 8 or 16, so that rows stay aligned (--pad-to-multiple-of)",
            )
        if any(u.fp64 for u in usages):
            arguments = f"; arguments that are: {', '.join(needs.fp64_arguments)}" if needs.fp64_arguments else ""
            yield _finding(
                "kernel_fp64",
                kernel,
                blocks,
                f"{kernel.name} ({way}): double precision in {sum(u.fp64 > 0 for u in usages)} of {len(usages)} configurations{arguments}",
                "a Python float became a runtime scalar in double precision (with dynamic=True a module's eps does), or a tensor is float64",
                "keep such constants as attributes that Dynamo specialises (dynamic=None), or compute in float32",
            )


def _of_graph(blocks: tuple[str, ...], graph: Lowered) -> Iterable[Finding]:
    for split in graph.splits:
        yield Finding(
            kind="perf",
            cause="reduction_split",
            severity="info",
            blocks=blocks,
            where=split.lines[0] if split.lines else Where(),
            evidence=(f"{split.reduction} over few rows is cut into {split.parts} parts, in two kernels",),
            explanation="the reduced dimension is long and the rows are few, so Inductor reduces in two kernels to fill the device",
            remedies=(Remedy(summary="none needed: one kernel would leave most of the device idle"),),
            doc=_DOC,
        )
    for line in graph.items:
        yield Finding(
            kind="perf",
            cause="tensor.item",
            severity="info",
            blocks=blocks,
            where=line,
            evidence=("aten._local_scalar_dense is part of the graph",),
            explanation="the graph holds a .item(): at this line the host waits for the device in every step",
            remedies=(Remedy(summary="keep the value as a 0-d tensor"),),
            doc=_DOC,
        )


def _finding(cause: str, kernel: Kernel, blocks: tuple[str, ...], evidence: str, explanation: str, remedy: str) -> Finding:
    return Finding(
        kind="perf",
        cause=cause,
        severity="info",
        blocks=blocks,
        where=kernel.lines[0] if kernel.lines else Where(),
        evidence=(evidence,),
        explanation=explanation,
        remedies=(Remedy(summary=remedy),),
        doc=_DOC,
    )
