"""Which nodes of a traced graph must be interpreted, given the level of each of its arguments.

Interpreted are: outputs that depend only on real data, non-floating outputs, operators that write an
argument, and whatever a data-dependent size needs. Everything else only gets memory.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from cftdiag.fastforward import rules
from cftdiag.fastforward.provenance import ASSUMED, REAL, SKIPPED, is_float
from cftdiag.fastforward.symbols import SYMBOLIC, exprs_of, shape_env_of
from cftdiag.torch_private.tracing import resolve_unbacked_bindings, tree_leaves, tree_map


class Plan:
    """A traced graph, its traced values, and the nodes to interpret per combination of argument levels."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.nodes = list(graph.nodes)
        self.val = {n: n.meta.get("val") for n in self.nodes}
        self.placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.outputs: list[Any] = list(next(n for n in self.nodes if n.op == "output").args[0])
        self.traced = [x for n in self.nodes for x in tree_leaves(self.val[n])]
        self.shape_env = shape_env_of(self.traced)
        #: node -> {unbacked symbol: where in the node's result}; AOTAutograd traces twice and renames the
        #: symbols
        self.defines: dict[torch.fx.Node, dict[sympy.Symbol, Any]] = {
            n: resolve_unbacked_bindings(self.shape_env, n.meta["unbacked_bindings"]) or {}
            for n in self.nodes
            if n.meta.get("unbacked_bindings")
        }
        self._source = {symbol: n for n, symbols in self.defines.items() for symbol in symbols}
        self._wanted: dict[tuple[int, ...], list[torch.fx.Node]] = {}

    def wanted(self, levels: tuple[int, ...]) -> list[torch.fx.Node]:
        """Nodes to interpret, in order, when the arguments have these levels."""
        if levels not in self._wanted:
            wanted = self._closure(self._levels(levels))
            self._wanted[levels] = [n for n in self.nodes if n in wanted]
        return self._wanted[levels]

    def _levels(self, arguments: Sequence[int]) -> dict[torch.fx.Node, Any]:
        """Level of every node's result (nested like the result)."""
        level: dict[torch.fx.Node, Any] = dict(zip(self.placeholders, arguments, strict=True))
        for n in self.nodes:
            if n not in level and n.op != "output":
                level[n] = self._level(n, level)
        return level

    def _level(self, n: torch.fx.Node, level: dict[torch.fx.Node, Any]) -> Any:
        value = self.val[n]
        if isinstance(value, SYMBOLIC) or n.op == "get_attr":
            return REAL
        if n.target is operator.getitem:
            whole = level[n.args[0]]  # type: ignore[index]
            if isinstance(whole, (list, tuple)):
                return whole[n.args[1]]  # type: ignore[index]
        packet = getattr(n.target, "overloadpacket", None)
        inputs = [x for a in n.all_input_nodes for x in tree_leaves(level[a])]
        highest = REAL if packet in rules.VALUE_FREE else max(inputs, default=REAL)

        def of_output(t: Any) -> int:
            if not isinstance(t, torch.Tensor):
                return REAL
            if _numel(t) > rules.CAP or (highest == SKIPPED and is_float(t)):
                return SKIPPED
            return min(highest, ASSUMED)

        # some higher-order operators carry no traced value, only the getitem nodes that use them do
        return highest if value is None else tree_map(of_output, value)

    def _closure(self, level: dict[torch.fx.Node, Any]) -> set[torch.fx.Node]:
        wanted: set[torch.fx.Node] = set()
        todo = [n for n in self.nodes if getattr(getattr(n.target, "_schema", None), "is_mutable", False)]
        for out in self.outputs:
            if isinstance(out, torch.fx.Node) and out.op != "placeholder":
                todo += self._size_sources(self.val[out])
                if level[out] != SKIPPED:
                    todo.append(out)
        while todo:
            n = todo.pop()
            if n in wanted or n.op == "placeholder":
                continue
            if isinstance(self.val[n], SYMBOLIC) and n not in self.defines:
                todo += self._size_sources(self.val[n])
                continue
            wanted.add(n)
            for a in n.all_input_nodes:
                if self.val[a] is not None and min(tree_leaves(level[a]), default=REAL) == SKIPPED:
                    todo += self._size_sources(self.val[a])  # only its metadata is used
                else:
                    todo.append(a)
        return wanted

    def _size_sources(self, value: Any) -> Iterable[torch.fx.Node]:
        """Nodes that define the data-dependent sizes of a traced value."""
        symbols = {s for x in tree_leaves(value) for e in exprs_of(x) for s in e.free_symbols}
        return [self._source[s] for s in symbols if s in self._source]


def _numel(t: torch.Tensor) -> int:
    """Number of elements, by the traced example where it is symbolic; 0 when it depends on data."""
    n = t.numel()
    return n if isinstance(n, int) else n.node.hint or 0  # type: ignore[attr-defined]
