"""Looks for the patterns of known wrong code in a lowered graph and the code generated for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from cftdiag.diagnose.wrong_code import (
    MIX_ORDER_VIEWS,
    RANDOM_IN_FOURS,
    SCATTER_ON_EXPANDED,
    Advisory,
    WrongCode,
)
from cftdiag.findings import Where
from cftdiag.target.collect import lines_of
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.inductor import NonOwningLayout

_KERNEL = re.compile(r"^def (triton_\w+)\(.*?(?=^\S|\Z)", re.M | re.S)
_ASSIGNED = re.compile(r"^\s+(\w+) = (.+)$", re.M)
_IN_FOURS = re.compile(r"triton_helpers\.randn?4x\(\w+, \((.+?)\)\.to\(tl\.uint32\), \w+\)")
_INTEGERS = re.compile(r"[\w\s+*/%()-]+")
_SCATTERS = ("slice_scatter", "select_scatter", "diagonal_scatter")
#: Neighbours that are looked at: more than any size that a test of a pattern could hide behind.
_NEIGHBOURS = 512
#: Stands for a size that is only known when the kernel runs.
_SOME_SIZE = 24


def find(graph: Any, text: str) -> list[WrongCode]:
    """What of the advisories is in ``graph`` (a ``GraphLowering``) and its generated ``text``."""
    found: list[tuple[Advisory, Iterable[str], Iterable[Any]]] = []
    if views := _rebound_views(graph, text):
        found.append(
            (
                MIX_ORDER_VIEWS,
                views,
                [n for v in views for n in graph.scheduler.name_to_buf[v].node.get_origins()],
            )
        )
    if kernels := random_out_of_order(text):
        drawn = [n for n in graph.graph.nodes if "inductor_random" in str(n.target)]
        found.append((RANDOM_IN_FOURS, kernels, drawn))
    if scatters := scatters_on_expanded(graph.graph):
        found.append((SCATTER_ON_EXPANDED, [n.name for n in scatters], scatters))
    return [_wrong(advisory, tuple(names), nodes, graph) for advisory, names, nodes in found]


def _wrong(advisory: Advisory, names: tuple[str, ...], nodes: Iterable[Any], graph: Any) -> WrongCode:
    lines = lines_of(n for n in nodes if isinstance(n, torch.fx.Node))
    return WrongCode(
        issue=advisory.issue,
        compile_id=dynamo.current_compile_id(),
        backward=bool(graph.is_backward),
        buffers=names,
        line=lines[0] if lines else Where(),
    )


def _rebound_views(graph: Any, text: str) -> tuple[str, ...]:
    """Buffers that are views into a shared one and that the code binds to a tensor of their own instead: what
    they hold never reaches the shared buffer.
    """
    views = [
        name
        for name, buffer in graph.scheduler.name_to_buf.items()
        if isinstance(getattr(buffer.node, "layout", None), NonOwningLayout)
    ]
    return tuple(name for name in views if re.search(rf"^\s*{name} = workspace_\d+\[", text, re.M))


def random_out_of_order(text: str) -> tuple[str, ...]:
    """Kernels that draw random numbers four at a time though neighbours in the kernel are no neighbours in the
    random stream: the helper takes the first offset of a program and counts on from there.
    """
    return tuple(name for name, drawn in _drawn(text) if not _counts_on(*drawn))


def _drawn(text: str) -> Iterator[tuple[str, tuple[str, Mapping[str, str]]]]:
    """(kernel, (offset, what is assigned to each name)) of each draw of four."""
    for kernel in _KERNEL.finditer(text):
        assigned = dict(_ASSIGNED.findall(kernel[0]))
        for offset in _IN_FOURS.findall(kernel[0]):
            yield kernel[1], (offset, assigned)


def _counts_on(offset: str, assigned: Mapping[str, str]) -> bool:
    """True when ``offset`` rises by one with ``xindex``; also where that cannot be computed."""
    start = _value(offset, assigned, 0)
    if start is None:
        return True
    return all(_value(offset, assigned, i) == start + i for i in range(1, _NEIGHBOURS))


def _value(expression: str, assigned: Mapping[str, str], xindex: int) -> int | None:
    """The integer expression of a kernel at one index; None where something else is in it."""
    expression = expression.replace(".to(tl.int32)", "").replace(".to(tl.int64)", "")
    if not _INTEGERS.fullmatch(expression):
        return None
    known: dict[str, int] = {}
    for name in set(re.findall(r"[A-Za-z_]\w*", expression)):
        if name == "xindex":
            known[name] = xindex
        elif re.fullmatch(r"ks\d+", name):
            known[name] = _SOME_SIZE
        else:
            value = _value(assigned[name], assigned, xindex) if name in assigned else None
            if value is None:
                return None
            known[name] = value
    return int(eval(expression, {"__builtins__": {}}, known))  # digits, names and signs alone


def scatters_on_expanded(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Writes into a part of a tensor whose result has a stride of 0 over more than one element."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and any(name in str(node.target) for name in _SCATTERS)
        and isinstance(value := node.meta.get("val"), torch.Tensor)
        and any(_repeats(size, stride) for size, stride in zip(value.shape, value.stride(), strict=True))
    ]


def _repeats(size: Any, stride: Any) -> bool:
    """True for a dimension of one element that stands for several; a symbol is not asked, which would guard."""
    return isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size < 2)
