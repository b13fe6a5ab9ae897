"""What the last whole step of a rehearsal launches, operators outside compiled graphs and the kernels of graphs, and
what it holds in memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cftdiag.fastforward.graph import Graph
from cftdiag.fastforward.symbols import SYMBOLIC, Environment
from cftdiag.payoff.allocations import Allocations
from cftdiag.payoff.eager_work import launch_of
from cftdiag.target.records import launches
from cftdiag.target.step_work import StepMemory
from cftdiag.target.work import Launch, Work
from cftdiag.torch_private.tracing import OpOverload, tree_leaves

_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class StepWork:
    """Counts between two ends of an optimizer step; ``steps`` says how many have ended."""

    def __init__(self, steps: Callable[[], int], allocations: Allocations) -> None:
        self._steps, self._ended = steps, 0
        self._allocations = allocations
        self._inside = _Inside()
        self._eager: list[Launch] = []
        self._compiled: list[Launch] = []
        self._last: tuple[int, Work, Work, bool, StepMemory] | None = None
        self._half: dict[int, bool] = {}
        self._whole = True
        """Whether the code of every graph that ran in this step is known."""

    def operator_ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One operator outside compiled graphs, on the tensors of the script."""
        self._turn()
        self._allocations.operator_ran(func, out)
        if not isinstance(func, OpOverload) or not _real((args, kwargs)):
            return  # of what is being traced
        launch = launch_of(func, args, kwargs, out)
        if launch is not None:
            self._eager.append(launch)

    def graph_runs(self, graph: Graph) -> None:
        """One run of a compiled graph begins."""
        self._turn()
        self._allocations.graph_starts()
        if graph.lowered is None:
            self._whole = False
            return
        if id(graph) not in self._half:
            dtypes = [value.dtype for value in graph.val.values() if isinstance(value, torch.Tensor)]
            self._half[id(graph)] = any(dtype in _HALF for dtype in dtypes)
        self._compiled += launches(graph.lowered, self._half[id(graph)])

    def graph_ran(self, graph: Graph, env: Environment, outputs: list[Any]) -> None:
        """It ends, and has let go of its arguments."""
        self._allocations.graph_ran(outputs, self._inside.bytes(graph, env))

    def _turn(self) -> None:
        ended = self._steps()
        if ended != self._ended:
            memory = self._allocations.step_ended()
            if ended > 1:  # the first one has what a script does before it trains
                self._last = ended, Work.of(self._eager), Work.of(self._compiled), self._whole, memory
            self._ended, self._eager, self._compiled, self._whole = ended, [], [], True

    def write(self, path: Path) -> None:
        """Write the last whole step, where there was one and all of its code is known."""
        self._turn()
        if self._last is None or not self._last[3]:
            return
        step, eager, compiled, _, memory = self._last
        data = {
            "step": step,
            "memory": dataclasses.asdict(memory),
            "eager": [dataclasses.asdict(one) for one in eager.launches],
            "compiled": [dataclasses.asdict(one) for one in compiled.launches],
        }
        path.write_text(json.dumps(data), encoding="utf-8")


class _Inside:
    """What a graph needs while it runs, by Inductor's own plan of its buffers."""

    def __init__(self) -> None:
        #: Graph -> (bytes beside its inputs, bytes of inputs of symbolic size) of its first run, which is of the
        #: sizes that it was traced with.
        self._first: dict[int, tuple[int, int]] = {}

    def bytes(self, graph: Graph, env: Environment) -> int:
        """Beside its inputs. At other sizes than those traced it grows as its inputs of symbolic size do."""
        inputs, growing = 0, 0
        for node in graph.plan.placeholders:
            value = graph.val[node]
            if isinstance(value, torch.Tensor):
                size = _bytes(graph, value, env)
                inputs += size
                growing += size if any(isinstance(n, SYMBOLIC) for n in value.shape) else 0
        if id(graph) not in self._first:
            peak = getattr(graph.lowered, "peak_bytes", None) or 0
            self._first[id(graph)] = max(peak - inputs, 0), growing
        beside, then = self._first[id(graph)]
        return beside * growing // then if then else beside


def _bytes(graph: Graph, traced: torch.Tensor, env: Environment) -> int:
    count = 1
    for size in traced.shape:
        count *= int(graph.number(size, env))
    return count * traced.element_size()


def _real(values: Any) -> bool:
    return all(type(value) in _PLAIN for value in tree_leaves(values) if isinstance(value, torch.Tensor))
