"""Findings that the generated code alone gives: spills, narrow accesses, double precision, split reductions,
waiting for the device. Torch-free.

All are ``perf`` and ``info``: they cost time and never the verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cftdiag.diagnose import CAUSES
from cftdiag.findings import Finding, Remedy, Where
from cftdiag.target.records import Lowered

if TYPE_CHECKING:
    from cftdiag.target.resources import Compiled

#: Kernels that move less than this are bounded by their launch, whatever their accesses are.
SMALL_BYTES = 1 << 20


def code_findings(
    graphs: Sequence[tuple[tuple[str, ...], Lowered]], compiled: Mapping[str, Compiled]
) -> list[Finding]:
    """Findings of ``(blocks, graph)`` pairs; ``compiled`` maps a kernel's source to what it needs (missing
    for the CPU target).
    """
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


def _of_kernels(
    blocks: tuple[str, ...], graph: Lowered, compiled: Mapping[str, Compiled]
) -> Iterable[Finding]:
    for kernel in graph.kernels:
        needs = compiled.get(kernel.source)
        if needs is None:
            continue
        name = f"{kernel.name} ({'backward' if graph.backward else 'forward'})"
        usages = [c.usage for c in needs.configurations]
        spilling = [u for u in usages if u.spill_stores or u.spill_loads]
        if spilling:
            stack = max(u.stack for u in spilling)
            said = f"{name}: {len(spilling)} of {len(usages)} configurations spill, at most {stack} bytes a thread"
            yield _finding("kernel_spills", blocks, kernel.lines, said)
        widest = max(u.widest for u in usages)
        if kernel.bytes >= SMALL_BYTES and widest < 64:
            loose = ", ".join(needs.unaligned) or "none"
            said = f"{name}: {kernel.bytes / 1e6:.1f} MB in accesses of at most {widest} bits; arguments not known to be divisible by 16: {loose}"
            yield _finding("kernel_scalar_access", blocks, kernel.lines, said)
        if any(u.fp64 for u in usages):
            arguments = (
                f"; arguments that are: {', '.join(needs.fp64_arguments)}" if needs.fp64_arguments else ""
            )
            said = f"{name}: double precision in {sum(u.fp64 > 0 for u in usages)} of {len(usages)} configurations{arguments}"
            yield _finding("kernel_fp64", blocks, kernel.lines, said)


def _of_graph(blocks: tuple[str, ...], graph: Lowered) -> Iterable[Finding]:
    for split in graph.splits:
        yield _finding(
            "reduction_split",
            blocks,
            split.lines,
            f"{split.reduction} over few rows is cut into {split.parts} parts, in two kernels",
        )
    for line in graph.items:
        found = _finding("tensor.item", blocks, (line,), "aten._local_scalar_dense is part of the graph")
        # the page is that of a graph break; this read was captured, and what remains is the wait
        yield dataclasses.replace(
            found,
            explanation="The graph holds a .item(): at this line the host waits for the device in every step.",
            remedies=(Remedy(summary="Keep the value as a 0-d tensor."),),
        )


def _finding(key: str, blocks: tuple[str, ...], lines: Sequence[Where], evidence: str) -> Finding:
    cause = CAUSES[key]
    return Finding(
        kind="perf",
        cause=key,
        severity="info",
        blocks=blocks,
        where=lines[0] if lines else Where(),
        evidence=(evidence,),
        explanation=cause.says,
        remedies=cause.remedies,
        doc=cause.doc(),
    )
