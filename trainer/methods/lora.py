"""LoRA: low-rank adapters in the same form as the OSFT factors, pure tensor math beside a frozen Linear; merged
into the weights at export.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cftdiag.recipe.blocks import set_module
from trainer.methods.method import Known, Method, Trained, first_like_the_others
from trainer.osft.surgery import Target
from trainer.targets import find_targets, is_conv1d
from trainer.weights import Filler, plain_modules, plain_names


class LoRA(Method):
    """The model is frozen; adapters on its targets are trained."""

    @property
    def scale(self) -> float:
        """What the product of an adapter's factors is multiplied by."""
        return self.config.lora_alpha / self.config.lora_rank

    def change(self, model: nn.Module, known: Known) -> tuple[Target, ...]:
        """Put adapters on the targets."""
        config = self.config
        adapt(model, rank=config.lora_rank, alpha=config.lora_alpha, patterns=config.lora_target_patterns)
        first_like_the_others(model, config)
        return ()

    def fill(self, filler: Filler, values: Mapping[str, Tensor], targets: tuple[Target, ...]) -> None:
        """Adapters begin at random, from the run's seed, and change nothing at first."""
        adapters = {name: m for name, m in plain_modules(filler.model).items() if isinstance(m, LoRALinear)}
        generator = torch.Generator().manual_seed(self.config.seed)
        for name in plain_names(filler.model):
            parent, _, child = name.rpartition(".")
            if parent in adapters and child in ("A", "B"):
                filler.fill(name, initial_factors(adapters[parent], generator)[child])
            else:
                filler.fill(name, values.get(name))

    def dense(self, name: str, plain: nn.Module, trained: Trained) -> Tensor:
        """The weight with its adapter merged, in float32."""
        parent, _, child = name.rpartition(".")
        if child == "weight" and f"{parent}.A" in trained.keys:
            return merged(trained.some(parent, ("weight", "A", "B")), self.scale)
        return super().dense(name, plain, trained)


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
