"""Compiled against eager: losses and gradients under one seed, with randomness that both draw alike.

Two comparisons, because each sees what the other cannot. The whole step, run once under
``set_stance("force_eager")`` and once compiled, sees a wrong loss wherever it is compiled. Each compiled
module alone, called again with the arguments of its first training call, sees gradients that never reach a
parameter.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cftdiag.passes.compiled_calls import Call
from cftdiag.torch_private import dynamo, inductor, tracing

STEPS = 2  # the first step may still have zero gradients somewhere (LoRA's B), the second has none
KEEP = 4  # gradients kept for one parameter: enough for two steps of two micro-batches

#: Largest relative L2 difference that is taken for rounding, by the lowest precision in play. A wrong
#: gradient is off by tenths.
TOLERANCE = {"high": 2e-3, "low": 5e-2}
#: Differences are measured against the larger of a gradient's own norm and this part of the largest norm:
#: tiny gradients are all rounding.
NEGLIGIBLE = 1e-3
_LOW = (torch.bfloat16, torch.float16)


@dataclasses.dataclass
class Trace:
    """What a run of the first steps computed: losses by step, gradients by parameter in the order
    accumulated.
    """

    losses: list[float | None] = dataclasses.field(default_factory=list)
    gradients: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)

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
        return found


def record(model: torch.nn.Module) -> Trace:
    """Record each gradient when it is accumulated, so that a step that drops its gradients is seen too."""
    trace = Trace()

    def hook_for(name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            kept = trace.gradients.setdefault(name, [])
            if len(kept) < KEEP and parameter.grad is not None:
                kept.append(parameter.grad.detach().clone())

        return hook

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook_for(name))
    return trace


def compare(
    reference: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], precision: str
) -> list[dict[str, Any]]:
    """Values that differ by more than rounding, worst first; a value that only one side has counts as
    different.
    """
    tolerance = TOLERANCE[precision]
    largest = max((v.double().norm().item() for n, v in reference.items() if ".grad" in n), default=0.0)
    wrong = []
    for name in sorted(set(reference) | set(found)):
        left, right = reference.get(name), found.get(name)
        if left is None or right is None or left.shape != right.shape:
            wrong.append(
                {
                    "name": name,
                    "eager": _norm(left),
                    "compiled": _norm(right),
                    "max_abs": None,
                    "rel": math.inf,
                }
            )
            continue
        difference = left.double() - right.double()
        scale = max(left.double().norm().item(), NEGLIGIBLE * largest if ".grad" in name else 0.0)
        relative = difference.norm().item() / scale if scale else difference.norm().item()
        if not relative <= tolerance:  # also for NaN
            both_nan = bool(left.isnan().any()) and bool(right.isnan().any())
            if not both_nan:
                worst = difference.abs().max().item() if difference.numel() else 0.0
                wrong.append(
                    {
                        "name": name,
                        "eager": _norm(left),
                        "compiled": _norm(right),
                        "max_abs": worst,
                        "rel": relative,
                    }
                )
    return sorted(wrong, key=lambda w: -w["rel"] if w["rel"] == w["rel"] else -math.inf)


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


def compare_call(call: Call, seed: int, precision: str) -> list[dict[str, Any]]:
    """Run one module eagerly and compiled on the same arguments and cotangents; values that differ, or []
    when eager differs from itself.
    """
    with torch.compiler.set_stance("force_eager"):
        eager = _run(call, seed)
        again = _run(call, seed)
    if eager is None or again is None or compare(eager, again, precision):
        return []  # the module does not repeat itself: nothing can be said
    dynamo.reset()
    compiled = _run(call, seed)
    return [] if compiled is None else compare(eager, compiled, precision)


def _run(call: Call, seed: int) -> dict[str, torch.Tensor] | None:
    args, kwargs = tracing.tree_map_only(
        torch.Tensor,
        lambda t: t.detach().clone().requires_grad_(t.is_floating_point()),
        (call.args, call.kwargs),
    )
    parameters = {n: p for n, p in call.module.named_parameters() if p.requires_grad}
    with _state_restored(call.module):
        torch.manual_seed(seed)
        # modules such as activation checkpoints mutate their inputs' history: a non-leaf copy is what they
        # get in training too
        moved = tracing.tree_map_only(
            torch.Tensor, lambda t: t * 1 if t.is_floating_point() else t, (args, kwargs)
        )
        output = call.module(*moved[0], **moved[1])
        outputs = [
            x
            for x in tracing.tree_leaves(_plain(output))
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]
        differentiable = [x for x in outputs if x.requires_grad]
        if not differentiable:
            return None
        generator = torch.Generator().manual_seed(seed + 1)
        cotangents = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in differentiable]
        inputs = [
            x for x in tracing.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        wanted = [*inputs, *parameters.values()]
        gradients = torch.autograd.grad(differentiable, wanted, cotangents, allow_unused=True)
    found = {f"{call.fqn} output {i}": x.detach() for i, x in enumerate(outputs)}
    names = [f"{call.fqn} input {i}.grad" for i in range(len(inputs))] + [
        f"{call.fqn}.{n}.grad" for n in parameters
    ]
    found |= {name: g.detach() for name, g in zip(names, gradients, strict=True) if g is not None}
    return found


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else output


@contextlib.contextmanager
def _state_restored(module: torch.nn.Module) -> Iterator[None]:
    """Put buffers and plain attributes back: a step counter must not make two runs differ."""
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    plain = [
        (
            m,
            {
                k: copy.copy(v)
                for k, v in vars(m).items()
                if isinstance(v, (bool, int, float, str, list, dict)) and not k.startswith("_")
            },
        )
        for m in module.modules()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])
        for owner, values in plain:
            vars(owner).update(values)


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
