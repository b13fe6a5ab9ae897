"""What one lowered graph consists of, as plain data. Torch-free; `to_dict` of each is JSON-ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.findings import Where
from cftdiag.target.work import Launch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch of a generated kernel. Bytes, FLOPs and element counts are for the sizes that the graph was
    traced with.
    """

    name: str
    category: str
    """``pointwise``, ``reduction``, ``persistent_reduction``, ``foreach``, ``template``, or ``cpp`` for the
    CPU target.
    """
    source: str
    """The Python module with the Triton function, or the C++ text."""
    aten: tuple[str, ...]
    """ATen operators fused in it, in the graph's order."""
    lines: tuple[Where, ...]
    """Lines of the model that it computes, the innermost outside torch; for a backward kernel those of the
    forward.
    """
    numels: Mapping[str, tuple[str, int]]
    """Iteration dimension (``xnumel``, ``r0_numel``) -> (symbolic size, size)."""
    reads: Mapping[str, int]
    """Buffer -> bytes read, each element once."""
    writes: Mapping[str, int]
    flops: int
    """Arithmetic operations of the loop body, one each (an ``exp`` counts as one)."""

    @property
    def bytes(self) -> int:
        """Bytes that must cross the memory bus at least."""
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extern:
    """A call of a library: a matrix product, attention."""

    op: str
    """``aten.mm``"""
    call: str
    """The name in the generated code."""
    flops: int | None
    """None where torch has no formula."""
    bytes: int
    lines: tuple[Where, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """A reduction that Inductor cut in two kernels because one row is too long for the number of rows."""

    reduction: str
    parts: str
    lines: tuple[Where, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    """One graph as Inductor lowered it for a target."""

    target: str
    backward: bool
    compile_id: str | None
    code: str
    """The generated wrapper module, kernels included."""
    kernels: tuple[Kernel, ...]
    externs: tuple[Extern, ...]
    splits: tuple[Split, ...]
    sizes: Mapping[str, int]
    """Symbol of a dynamic size -> the size that was traced."""
    items: tuple[Where, ...]
    """Lines whose ``.item()`` is part of the graph: the device is waited for there."""
    peak_bytes: int | None
    """Inductor's own estimate of the peak of the graph's buffers, inputs included; None where this torch has
    none.
    """

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict; the code is left out."""
        data = dataclasses.asdict(self)
        del data["code"]
        return data


def launches(graph: Lowered, half: bool) -> list[Launch]:
    """What one run of a graph launches; ``half`` says that it computes in 16-bit floating point."""
    kernels = [
        Launch(name=k.name, bytes=k.bytes, flops=k.flops, product=k.category == "template", half=half)
        for k in graph.kernels
    ]
    calls = [
        Launch(name=e.op, bytes=e.bytes, flops=e.flops or 0, product=e.flops is not None, half=half)
        for e in graph.externs
    ]
    return [*kernels, *calls]
