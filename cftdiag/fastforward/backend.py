"""torch.compile backends that trace for real and compute (almost) nothing.

Dynamo, AOTAutograd, the partitioner, guards and recompiles are the genuine ones; at run time a graph hands
back freshly allocated outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cftdiag.fastforward.graph import STATS, Graph
from cftdiag.fastforward.skip_mode import SkipMode
from cftdiag.torch_private import dynamo, tracing

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def boxed(graph: Graph) -> Callable[[list[Any]], list[Any]]:
    """``graph.run`` in the boxed calling convention that AOTAutograd expects of a compiler's result."""

    def run(args: list[Any]) -> list[Any]:
        return graph.run(args)

    tracing.mark_boxed(run)
    return run


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same module with a graph of its own, for a compiler that rewrites ``gm`` afterwards (a shallow copy
    would share the nodes).
    """
    return torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))


def _compiler(kind: str) -> Callable[..., Any]:
    def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return boxed(Graph(gm, kind))

    return compile_graph


_joint = tracing.aot_autograd(
    fw_compiler=_compiler("fwd"),
    bw_compiler=_compiler("bwd"),
    partition_fn=tracing.min_cut_rematerialization_partition,
)


def fast_forward(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Backend of depth ``joint``: Dynamo, then AOTAutograd's forward and backward graphs."""
    return _joint(gm, example_inputs)


def trace_only(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Backend of depth ``trace``: the Dynamo graph, run operator by operator under the same rules; its
    backward is eager autograd's.
    """
    STATS["fwd"] += 1

    def run(*args: Any) -> Any:
        STATS["calls"] += 1
        with SkipMode():
            return gm(*args)

    return dynamo.disable(run, recursive=True)


DEPTHS: dict[str, Backend] = {"trace": trace_only, "joint": fast_forward}


def backend_for(depth: str) -> Backend:
    """The backend of a depth, ``trace`` or ``joint``."""
    if depth not in DEPTHS:
        raise ValueError(f"no fast-forward backend for depth {depth!r}; one of {', '.join(DEPTHS)}")
    return DEPTHS[depth]
