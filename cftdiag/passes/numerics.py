"""Compiled against eager: losses and gradients under one seed, with randomness that both draw alike.

The whole training step decides: it is run once under ``set_stance("force_eager")`` and once compiled, each
from a virgin model in a process of its own, under the same seeds. Compared are the losses, the gradient of
each parameter, and the gradient that each compiled module hands back to what came before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from cftdiag.diagnose.engine.probes import Worst
from cftdiag.torch_private import dynamo, inductor, tracing

KEEP = 4  # gradients kept for one parameter: enough for two steps of two micro-batches

#: Largest relative L2 difference that is taken for rounding, by the lowest precision in play. A wrong
#: gradient is off by tenths.
TOLERANCE = {"high": 2e-3, "low": 5e-2}
#: Differences are measured against the larger of a gradient's own norm and this part of the largest norm:
#: tiny gradients are all rounding.
NEGLIGIBLE = 1e-3
GIVEN = "value of "
"""Begins the names of what modules were given."""
_LOW = (torch.bfloat16, torch.float16)


@dataclasses.dataclass
class Trace:
    """What a run of the first steps computed: losses by step, gradients by parameter in the order
    accumulated.
    """

    losses: list[float | None] = dataclasses.field(default_factory=list)
    gradients: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)
    inputs: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)
    """What each compiled module was given, by call: they tell where a forward went wrong, and are no result."""
    nodes: list[Any] = dataclasses.field(default_factory=list)
    """Nodes with a hook: that of a leaf lives no longer than somebody holds it."""

    def named(self) -> dict[str, torch.Tensor]:
        """Every recorded value by name."""
        found = {
            f"loss of step {i + 1}": torch.tensor(v, dtype=torch.float64)
            for i, v in enumerate(self.losses)
            if v is not None
        }
        for name, values in self.gradients.items():
            for i, value in enumerate(values):
                found[f"{name}.grad" + (f" (accumulation {i + 1})" if i else "")] = value
        for name, values in self.inputs.items():
            found |= {f"{GIVEN}{name} (call {i + 1})": value for i, value in enumerate(values)}
        return found


def seed_everything(seed: int) -> None:
    """Seed every generator that a training step may draw from: torch's, Python's and numpy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def record(model: torch.nn.Module, trace: Trace) -> None:
    """Record each gradient when it is accumulated, so that a step that drops its gradients is seen too."""

    def hook_for(name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            kept = trace.gradients.setdefault(name, [])
            if len(kept) < KEEP and parameter.grad is not None:
                kept.append(parameter.grad.detach().clone())

        return hook

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook_for(name))


def record_inputs(trace: Trace, fqn: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Record the trained arguments of a call of module ``fqn``, and the gradients that it hands back to them.

    The hooks sit on the nodes that made the arguments: one on the tensor itself would be traced.
    """
    if not torch.is_grad_enabled() or dynamo.in_backward():
        return
    for i, value in enumerate(tracing.tree_leaves((args, kwargs))):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            edge = torch.autograd.graph.get_gradient_edge(value)
            trace.nodes.append(edge.node)
            kept = trace.gradients.setdefault(f"{fqn} input {i}", [])
            edge.node.register_prehook(_keeper(kept, edge.output_nr))
            given = trace.inputs.setdefault(f"{fqn} input {i}", [])
            if len(given) < KEEP:
                given.append(value.detach().clone())


def _keeper(kept: list[torch.Tensor], index: int) -> Callable[[Any], None]:
    def keep(gradients: Any) -> None:
        value = gradients[index]
        if value is not None and len(kept) < KEEP:
            kept.append(value.detach().clone())

    return keep


def wrong_module(names: Iterable[str], modules: Sequence[str]) -> str | None:
    """The module at fault, of ``modules`` in model order, given the names of values that differ.

    Where a module was given other values in the first call, the one before it computed them. Else the last one touched,
    because backward carries a wrong gradient from there to those before.
    """
    known = list(names)
    given = {name.removeprefix(GIVEN).split(" input ")[0] for name in known if _first_given(name)}
    first = next((i for i, module in enumerate(modules) if module in given), None)
    if first is not None:
        return modules[first - 1] if first else None
    touched = {name.split(" input ")[0] for name in known if not name.startswith(GIVEN)}
    return next((m for m in reversed(modules) if any(t == m or t.startswith(f"{m}.") for t in touched)), None)


def _first_given(name: str) -> bool:
    return name.startswith(GIVEN) and name.endswith("(call 1)")


def compare(
    reference: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], precision: str
) -> list[Worst]:
    """Values that differ by more than rounding, worst first.

    A value that only one side has counts as different, unless it is a gradient of zeros: an unused parameter
    may have either.
    """
    tolerance = TOLERANCE[precision]
    largest = max((v.double().norm().item() for n, v in reference.items() if ".grad" in n), default=0.0)
    wrong = []
    for name in sorted(set(reference) | set(found)):
        left, right = reference.get(name), found.get(name)
        only = left if right is None else right if left is None else None
        if only is not None and ".grad" in name and not only.any():
            continue
        if left is None or right is None or left.shape != right.shape:
            wrong.append(Worst(name=name, eager=_norm(left), compiled=_norm(right), rel=math.inf))
            continue
        difference = left.double() - right.double()
        scale = max(left.double().norm().item(), NEGLIGIBLE * largest if ".grad" in name else 0.0)
        relative = difference.norm().item() / scale if scale else difference.norm().item()
        if not relative <= tolerance:  # also for NaN
            both_nan = bool(left.isnan().any()) and bool(right.isnan().any())
            if not both_nan:
                worst = difference.abs().max().item() if difference.numel() else 0.0
                wrong.append(
                    Worst(
                        name=name,
                        eager=_norm(left),
                        compiled=_norm(right),
                        max_abs=worst,
                        rel=relative,
                    )
                )
    return sorted(wrong, key=lambda w: -math.inf if w.rel is None or math.isnan(w.rel) else -w.rel)


def _norm(value: torch.Tensor | None) -> float | None:
    return None if value is None else value.double().norm().item()


def precision_of(model: torch.nn.Module, batches: Any) -> str:
    """``low`` when half precision is in play anywhere that can be seen from outside, else ``high``."""
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *tracing.tree_leaves([dict(b) for b in batches]),
    ]
    low = any(isinstance(t, torch.Tensor) and t.dtype in _LOW for t in tensors)
    return "low" if low or torch.is_autocast_enabled("cpu") else "high"


@contextlib.contextmanager
def alike_randomness() -> Iterator[None]:
    """Let Inductor draw its random numbers as eager does."""
    with inductor.config.patch(fallback_random=True):
        yield


def differing_config() -> dict[str, Any]:
    """Settings away from their default that change what a backward computes."""
    found = {}
    budget = getattr(tracing.aot_config, "activation_memory_budget", 1.0)
    if budget != 1.0:
        found["torch._functorch.config.activation_memory_budget"] = budget
    return found
