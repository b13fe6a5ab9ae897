"""LoRA: low-rank adapters in the same form as the OSFT factors, pure tensor math beside a frozen Linear; merged
into the weights at export.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from cftdiag.recipe.blocks import set_module
from trainer.methods.method import Beside, Known, Method, Trained, first_like_the_others
from trainer.osft.frozen import local
from trainer.osft.surgery import Target
from trainer.targets import find_targets, is_conv1d
from trainer.weights import Filler, plain_modules, plain_names, whole


class LoRA(Method):
    """The model is frozen; adapters on its targets are trained."""

    packed: tuple[str, ...] = ()
    """Names in an adapted layer that stand for the plain weight."""

    @property
    def scale(self) -> float:
        """What the product of an adapter's factors is multiplied by."""
        return self.config.lora_alpha / self.config.lora_rank

    def change(self, model: nn.Module, known: Known) -> tuple[Target, ...]:
        """Put adapters on the targets."""
        config = self.config
        rank, alpha = config.lora_rank, config.lora_alpha
        adapt(model, rank=rank, alpha=alpha, patterns=config.lora_target_patterns, make=self.layer())
        first_like_the_others(model, config)
        return ()

    def layer(self) -> Callable[..., LoRALinear]:
        """What makes the layer of a target: of ``(linear, rank=, scale=)``."""
        return LoRALinear

    def fill(self, filler: Filler, values: Mapping[str, Tensor], targets: tuple[Target, ...]) -> None:
        """Adapters begin at random, from the run's seed, and change nothing at first."""
        adapters = adapted_layers(filler.model)
        generator = torch.Generator().manual_seed(self.config.seed)
        for name in plain_names(filler.model):
            parent, _, child = name.rpartition(".")
            if parent in adapters and child in ("A", "B"):
                filler.fill(name, initial_factors(adapters[parent], generator)[child])
            elif parent not in adapters or child not in self.packed:
                filler.fill(name, values.get(name))

    def dense(self, name: str, plain: nn.Module, trained: Trained) -> Tensor:
        """The weight with its adapter merged, in float32."""
        parent, _, child = name.rpartition(".")
        if child == "weight" and f"{parent}.A" in trained.keys:
            return merged(trained.some(parent, ("weight", "A", "B")), self.scale)
        return super().dense(name, plain, trained)

    def beside(self, trained: Trained) -> Beside | None:
        """The adapters, as peft reads them."""
        names = [key.removesuffix(".A") for key in trained.keys if key.endswith(".A")]
        tensors: dict[str, Tensor] = {}
        for name in names:
            factors = trained.some(name, ("A", "B"))
            tensors |= {
                f"base_model.model.{name}.lora_{f}.weight": factors[f].cpu().contiguous() for f in "AB"
            }
        config = self.config

        def write(_plain: Path, directory: Path) -> None:
            from peft import LoraConfig
            from safetensors.torch import save_file

            LoraConfig(
                r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=names, task_type="CAUSAL_LM",
                base_model_name_or_path=config.model_name_or_path, inference_mode=True,
            ).save_pretrained(directory)  # fmt: skip
            save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})

        return Beside(name="adapter", write=write)


class LoRALinear(nn.Module):
    """``y = x W^T + b + scale (x A^T) B^T``, W frozen; A rank x in, B out x rank starts at zero (arXiv
    2106.09685).
    """

    def __init__(self, linear: nn.Linear, *, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = linear.weight.shape
        self.hold(linear.weight.requires_grad_(False))
        self.bias = linear.bias.requires_grad_(False) if linear.bias is not None else None
        like: dict[str, Any] = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.A = nn.Parameter(torch.empty(rank, columns, **like))
        self.B = nn.Parameter(torch.zeros(rows, rank, **like))
        self.scale = scale
        self.adapted = True
        """False: the frozen layer alone. One bool a layer: two graphs in all, for blocks share theirs."""

    def hold(self, weight: nn.Parameter) -> None:
        """Keep the frozen weight, out x in."""
        self.weight = weight

    def base(self, x: Tensor) -> Tensor:
        """The frozen layer."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        frozen = self.base(x)
        return frozen + F.linear(F.linear(x, self.A), self.B) * self.scale if self.adapted else frozen


def adapt(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    patterns: tuple[str, ...] = (),
    make: Callable[..., LoRALinear] = LoRALinear,
) -> list[str]:
    """Freeze the model and put adapters on its targets, in place; returns their names. ``make`` gives the layer
    with an adapter in place of a Linear. Raises ``ValueError`` when nothing matches, and for a rank that no
    target has.
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
        try:
            set_module(model, name, make(linear, rank=rank, scale=alpha / rank))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return list(targets)


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The frozen model alone, as it was before training. A compiled region has a second graph for it, which is
    there from the first use on.
    """
    layers = adapted_layers(model).values()
    before = [layer.adapted for layer in layers]
    try:
        for layer in layers:
            layer.adapted = False
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.adapted = value


@contextlib.contextmanager
def merged_adapters(model: nn.Module) -> Iterator[None]:
    """The trained model with its adapters in the weights, which costs no product of an adapter: for validation
    or generation. It runs the graphs of :func:`without_adapters`; afterwards the weights are, bit for bit,
    what they were. Takes the memory of the targets' shards once more. Collective. Raises ``ValueError`` for
    weights of 4 bits, which have no room for a sum.
    """
    layers = adapted_layers(model)
    if quantised := [name for name, layer in layers.items() if hasattr(layer, "packed")]:
        raise ValueError(f"{quantised[0]} is kept in 4 bits; adapters are merged by the export alone")
    if isinstance(model, FSDPModule):
        model.reshard()  # after a validation the root may still hold gathered parameters
    kept = {name: local(layer.weight).clone() for name, layer in layers.items()}
    try:
        with torch.no_grad():
            for layer in layers.values():
                # Both are sharded on their rows alike, so that each rank has its rows of the product.
                product = local(layer.B).float() @ whole(layer.A).float()
                local(layer.weight).add_(product * layer.scale)
        with without_adapters(model):
            yield
    finally:
        if isinstance(model, FSDPModule):
            model.reshard()
        for name, layer in layers.items():
            local(layer.weight).copy_(kept[name])


def adapted_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Layers with an adapter, by plain name."""
    return {name: m for name, m in plain_modules(model).items() if isinstance(m, LoRALinear)}


def initial_factors(layer: LoRALinear, generator: torch.Generator) -> dict[str, Tensor]:
    """Full-size A (uniform, as nn.Linear's own initialisation) and B (zero) of a layer, on the CPU."""
    rank, columns = layer.A.shape
    bound = 1 / math.sqrt(columns)
    a = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
    return {"A": a, "B": torch.zeros(layer.B.shape)}


def merged(factors: dict[str, Tensor], scale: float) -> Tensor:
    """The out x in weight that base and adapter stand for, in float32."""
    return factors["weight"].float() + scale * (factors["B"].float() @ factors["A"].float())
