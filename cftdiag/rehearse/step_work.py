"""What the last whole step of a rehearsal launches: operators outside compiled graphs, and the kernels of graphs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cftdiag.fastforward.graph import Graph
from cftdiag.payoff.eager_work import launch_of
from cftdiag.target.records import launches
from cftdiag.target.work import Launch, Work
from cftdiag.torch_private.tracing import OpOverload, tree_leaves

_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class StepWork:
    """Counts between two ends of an optimizer step; ``steps`` says how many have ended."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps, self._ended = steps, 0
        self._eager: list[Launch] = []
        self._compiled: list[Launch] = []
        self._last: tuple[int, Work, Work, bool] | None = None
        self._half: dict[int, bool] = {}
        self._whole = True
        """Whether the code of every graph that ran in this step is known."""

    def operator_ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One operator outside compiled graphs, on the tensors of the script."""
        self._turn()
        if not isinstance(func, OpOverload) or not _real((args, kwargs)):
            return  # of what is being traced
        launch = launch_of(func, args, kwargs, out)
        if launch is not None:
            self._eager.append(launch)

    def graph_ran(self, graph: Graph) -> None:
        """One run of a compiled graph."""
        self._turn()
        if graph.lowered is None:
            self._whole = False
            return
        if id(graph) not in self._half:
            dtypes = [value.dtype for value in graph.val.values() if isinstance(value, torch.Tensor)]
            self._half[id(graph)] = any(dtype in _HALF for dtype in dtypes)
        self._compiled += launches(graph.lowered, self._half[id(graph)])

    def _turn(self) -> None:
        ended = self._steps()
        if ended != self._ended:
            if ended > 1:  # the first one has what a script does before it trains
                self._last = ended, Work.of(self._eager), Work.of(self._compiled), self._whole
            self._ended, self._eager, self._compiled, self._whole = ended, [], [], True

    def write(self, path: Path) -> None:
        """Write the last whole step, where there was one and all of its code is known."""
        self._turn()
        if self._last is None or not self._last[3]:
            return
        step, eager, compiled, _ = self._last
        data = {
            "step": step,
            "eager": [dataclasses.asdict(one) for one in eager.launches],
            "compiled": [dataclasses.asdict(one) for one in compiled.launches],
        }
        path.write_text(json.dumps(data), encoding="utf-8")


def _real(values: Any) -> bool:
    return all(type(value) in _PLAIN for value in tree_leaves(values) if isinstance(value, torch.Tensor))
