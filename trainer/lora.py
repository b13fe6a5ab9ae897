"""Low-rank adapters in the same form as the OSFT factors: pure tensor math beside a frozen Linear."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cftdiag.recipe.blocks import set_module
from trainer.targets import find_targets, is_conv1d


class LoRALinear(nn.Module):
    """``y = x W^T + b + scale (x A^T) B^T``, W frozen; A rank x in, B out x rank starts at zero (arXiv
    2106.09685).
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, *, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.weight = weight.requires_grad_(False)
        self.bias = bias.requires_grad_(False) if bias is not None else None
        self.A = nn.Parameter(torch.empty(rank, columns, dtype=weight.dtype, device=weight.device))
        self.B = nn.Parameter(torch.zeros(rows, rank, dtype=weight.dtype, device=weight.device))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.A), self.B) * self.scale


def adapt(model: nn.Module, *, rank: int, alpha: float, patterns: tuple[str, ...] = ()) -> list[str]:
    """Freeze the model and put adapters on its targets, in place; returns their names. Raises ``ValueError``
    when nothing matches, and for a rank that no target has.
    """
    targets = find_targets(model, patterns)
    conv = next((name for name, module in targets.items() if is_conv1d(module)), None)
    if conv is not None:
        raise ValueError(
            f"lora does not take Conv1D targets ({conv}); use --osft or full fine-tuning for {model.config.model_type}"
        )
    if rank > (most := max(min(linear.weight.shape) for linear in targets.values())):
        raise ValueError(
            f"lora-rank {rank} is above {most}, the rank of the largest target itself; give less"
        )
    model.requires_grad_(False)
    for name, linear in targets.items():
        set_module(model, name, LoRALinear(linear.weight, linear.bias, rank=rank, scale=alpha / rank))
    return list(targets)


def initial_factors(layer: LoRALinear, generator: torch.Generator) -> dict[str, Tensor]:
    """Full-size A (uniform, as nn.Linear's own initialisation) and B (zero) of a layer, on the CPU."""
    rank, columns = layer.A.shape
    bound = 1 / math.sqrt(columns)
    a = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
    return {"A": a, "B": torch.zeros(layer.B.shape)}


def merged(factors: dict[str, Tensor], scale: float) -> Tensor:
    """The out x in weight that base and adapter stand for, in float32."""
    return factors["weight"].float() + scale * (factors["B"].float() @ factors["A"].float())
