"""What is known of a loss, a gradient or a weight that is not finite: which rows, which parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cftdiag.recipe.packing import Sample, Step
from trainer.weights import plain_name


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Nonfinite:
    """Where it was seen in one step."""

    rows: tuple[tuple[int, int], ...]
    """``(microstep, rank)`` of the rows whose own loss is not finite; empty where only a gradient is not."""
    parameter: str | None
    """The first parameter, in the model's order, whose gradient is not finite."""


def locate(model: nn.Module, losses: Sequence[Tensor]) -> Nonfinite:
    """Look at this rank's losses of a step and at every gradient. Collective; reads much, for a bad step
    only.
    """
    named = [(plain_name(name), p) for name, p in model.named_parameters()]
    bad = [name for name, p in named if p.grad is not None and not _finite(p.grad)]
    rows = [micro for micro, loss in enumerate(losses) if not bool(torch.isfinite(loss).all())]
    found: list[tuple[list[int], list[str]]] = [([], []) for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, (rows, bad[:1]))
    order = {name: i for i, (name, _) in enumerate(named)}
    names = sorted({name for _, some in found for name in some}, key=lambda name: order.get(name, 0))
    return Nonfinite(
        rows=tuple(sorted((micro, rank) for rank, (some, _) in enumerate(found) for micro in some)),
        parameter=names[0] if names else None,
    )


def describe(
    step: int, plan: Step, samples: Sequence[Sample], loss: float, norm: float, at: Nonfinite
) -> str:
    """One line: the step, the figures, and the lines of the data that are to be looked at."""

    def lines(rows: Iterable[tuple[int, int]]) -> list[int]:
        return sorted(samples[i].line for micro, rank in rows for i in plan.rows[micro][rank].samples)

    everything = [(m, r) for m, micro in enumerate(plan.rows) for r in range(len(micro))]
    text = f"step {step}: loss is {loss}, gradient norm {norm}; the batch is lines {lines(everything)} of the data"
    if at.rows and (some := lines(at.rows)) and len(some) < len(lines(everything)):
        text += f", the loss of lines {some} is not finite"
    if at.parameter is not None:
        text += f"; the first bad gradient is that of {at.parameter}"
    return text


def first_bad(tensors: dict[str, Tensor]) -> str | None:
    """Name of the first floating-point tensor that is not finite on any rank, None when all are. Collective."""
    mine = next((name for name, t in tensors.items() if t.is_floating_point() and not _finite(t)), None)
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return next((name for name in found if name is not None), None)


def _finite(tensor: Tensor) -> bool:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    # A sum is one pass without a mask of the tensor's size; it may overflow where all values are finite.
    if local.numel() == 0 or bool(torch.isfinite(local.sum())):
        return True
    return bool(torch.isfinite(local).all())
