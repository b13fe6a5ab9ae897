"""How much of the step is compiled: floating point operations of matrix products and attention, inside compiled
graphs and outside, by the formulas of ``torch.utils.flop_counter``.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from cftdiag.fastforward import SkipMode
from cftdiag.fastforward.graph import Graph
from cftdiag.fastforward.symbols import SYMBOLIC, Environment
from cftdiag.rehearse.callbacks import Callbacks
from cftdiag.rehearse.collectives import Collectives
from cftdiag.rehearse.settings import EagerShare
from cftdiag.rehearse.step_work import StepWork
from cftdiag.torch_private.dynamo import in_backward
from cftdiag.torch_private.tracing import tree_map
from cftdiag.torch_private.wrappers import strip

#: Rows of the list of what runs eager.
ROWS = 12
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Counter:
    """Operations seen so far, by where they ran."""

    def __init__(self, models: Callable[[], Sequence[torch.nn.Module]], callbacks: Callbacks) -> None:
        self._models, self._callbacks = models, callbacks
        self._known: set[int] = set()
        self.compiled = 0.0
        self.paused = False
        """True during what is no part of a training step."""
        self.eager: collections.Counter[str] = collections.Counter()
        self._by_graph: dict[tuple[Graph, tuple[Any, ...]], float] = {}
        self._owners: dict[int, str] = {}

    def graph_ran(self, graph: Graph, env: Environment) -> None:
        """One run of a compiled graph."""
        if self.paused:
            return
        key = (graph, tuple(env.values()))
        if key not in self._by_graph:
            self._by_graph[key] = _graph_flops(graph, env)
        self.compiled += self._by_graph[key]
        self._callbacks.operator_ran(self._by_graph[key])

    def operator_ran(self, func: Any, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        """One operator outside compiled graphs."""
        formula = flop_registry.get(getattr(func, "overloadpacket", None))
        if self.paused or (formula is None and self._callbacks.inside is None):
            return
        if not all(type(a) in _PLAIN for a in args if isinstance(a, torch.Tensor)):
            return  # traced: its graph is counted when it runs
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
        self._callbacks.operator_ran(flops)
        if formula is None:
            return
        for model in self._models():
            if id(model) not in self._known:
                self._know(model)
        keys = [_key(a) for a in args if isinstance(a, torch.Tensor)]
        where = next((self._owners[key] for key in keys if key in self._owners), "")
        if not where:
            where = "backward" if in_backward() else str(func.overloadpacket)
        self.eager[where] += flops

    def _know(self, model: torch.nn.Module) -> None:
        self._known.add(id(model))
        for name, module in model.named_modules():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(_key(parameter), strip(name))

    def shares(
        self, models: Sequence[torch.nn.Module], compiled: Sequence[torch.nn.Module]
    ) -> list[EagerShare]:
        """What runs outside compiled regions: modules with their parameters, and operators without any."""
        inside = {id(m) for root in compiled for m in root.modules()}
        sizes: collections.Counter[str] = collections.Counter()
        for model in models:
            for name, module in model.named_modules():
                if id(module) not in inside:
                    sizes[strip(name)] += sum(p.numel() for p in module.parameters(recurse=False))
        names = {name for name, size in sizes.items() if size} | set(self.eager)
        rows = [
            EagerShare(name=n or "<root>", flops=float(self.eager[n]), parameters=sizes[n]) for n in names
        ]
        return sorted(rows, key=lambda r: (-r.flops, -r.parameters, r.name))[:ROWS]


class CountingSkipMode(SkipMode):
    """`SkipMode` that counts what it skips, and notes collectives where ranks are compared."""

    def __init__(
        self, counter: Counter, collectives: Collectives | None = None, work: StepWork | None = None
    ) -> None:
        super().__init__()
        self._counter, self._collectives, self._work = counter, collectives, work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._collectives is not None:
            self._collectives.called(func, args)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if out is not NotImplemented:
            self._counter.operator_ran(func, args, kwargs or {}, out)
            if self._work is not None:
                self._work.operator_ran(func, args, kwargs or {}, out)
        return out


def _key(tensor: torch.Tensor) -> int:
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.untyped_storage()._cdata)


def _graph_flops(graph: Graph, env: Environment) -> float:
    """Operations of one run of a graph at the sizes that ``env`` binds."""

    def shape(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.Size(graph.number(x, env) for x in value.shape)
        return graph.number(value, env) if isinstance(value, SYMBOLIC) else value

    total = 0.0
    for node in graph.plan.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if formula is not None:
            traced = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: graph.val[n])
            args, kwargs = tree_map(shape, traced)
            total += float(formula(*args, **kwargs, out_val=tree_map(shape, graph.val[node])))
    return total
