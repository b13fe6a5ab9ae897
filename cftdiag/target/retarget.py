"""Moves a Dynamo graph, traced on the CPU, to a device that is not there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from cftdiag.fastforward import Graph
from cftdiag.torch_private import dynamo, inductor
from cftdiag.torch_private.tracing import tree_map

_HERE = ("cpu", "cpu:0")


class CpuGraph(Graph):
    """Runs a graph of the absent device on the CPU."""

    device = torch.device("cpu")


def to_cuda(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The same graph with its inputs replaced by fake CUDA tensors that share Dynamo's symbolic sizes; ``gm``
    itself is left as it is.

    0-d inputs that need no gradient stay on the CPU: in a real run they are made there (sizes, schedules, the
    step).
    """
    fakes = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    context = dynamo.try_get()
    assert context is not None and context.fake_mode is not None
    mode = context.fake_mode

    def moved(x: Any, fake: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return fake if isinstance(fake, torch.SymInt) else x
        if fake.device.type != "cpu" or (fake.dim() == 0 and not fake.requires_grad):
            return x
        with mode, torch.no_grad():
            t = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cuda")
        if isinstance(x, torch.nn.Parameter):
            return torch.nn.Parameter(t, requires_grad=x.requires_grad)
        return t.requires_grad_(fake.requires_grad)

    return _module(gm, mode), [moved(x, fake) for x, fake in zip(inputs, fakes, strict=True)]


def _module(gm: torch.fx.GraphModule, mode: Any) -> torch.fx.GraphModule:
    made = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta.update(gm.meta)
    for n in made.graph.nodes:
        if n.op in ("call_function", "call_method"):
            autocast = n.target in (inductor.enter_autocast, torch.amp.autocast)
            convert = _autocast_device if autocast else _device
            n.args, n.kwargs = tree_map(convert, n.args), tree_map(convert, dict(n.kwargs))
            _fill_scalar(n)
        elif n.op == "get_attr" and "." not in n.target:
            found = getattr(made, n.target)
            if isinstance(found, torch.fx.GraphModule):  # the body of a higher-order operator
                setattr(made, n.target, _module(found, mode))
            elif isinstance(found, torch.Tensor) and found.dim() and found.device.type == "cpu":
                with mode, torch.no_grad():
                    setattr(
                        made,
                        n.target,
                        torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="cuda"),
                    )
    made.recompile()
    return made


def _fill_scalar(n: torch.fx.Node) -> None:
    """A number that is made a tensor on the device. Tracing would copy it there for real, to know its value; filled in,
    it is the same tensor without that.
    """
    value, device = (n.args[0] if n.args else None), torch.device(n.kwargs.get("device") or "cpu")  # type: ignore[arg-type]
    made = n.meta.get("example_value")
    if (
        n.target in (torch.tensor, torch.as_tensor)
        and device.type == "cuda"
        and isinstance(value, (bool, int, float))
        and isinstance(made, torch.Tensor)
        and not made.requires_grad
    ):
        n.target, n.args, n.kwargs = torch.full, ((), value), {"dtype": made.dtype, "device": device}


def _device(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "cpu":
        return torch.device("cuda", 0)
    return "cuda:0" if isinstance(x, str) and x in _HERE else x


def _autocast_device(x: Any) -> Any:
    return "cuda" if isinstance(x, str) and x in _HERE else x
