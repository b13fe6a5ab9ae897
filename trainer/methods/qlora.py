"""QLoRA: adapters beside weights of 4 bits (NF4, arXiv 2305.14314), which are dequantised where they are used,
inside of the graph; the export merges the adapters into the dequantised weights.

torchao packs and unpacks. What it packs is kept here as plain tensors, not as its tensor subclass: FSDP2
shards them as any parameter, a checkpoint stores them, and Dynamo sees arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.methods import torchao
from trainer.methods.lora import LoRA, LoRALinear, adapted_layers, merged
from trainer.methods.method import Trained
from trainer.osft.frozen import local
from trainer.osft.surgery import Target
from trainer.weights import Filler

PACKED = ("packed", "scalers", "factors", "mean", "table")
"""What stands for a weight: two of its elements a byte, the scale of each block in 8 bits, the factor of each
group of scales, the mean of all, and the 16 values of NF4.
"""
GROUP = 256
"""Most scales that share a factor, as in torchao."""


class QLoRA(LoRA):
    """Adapters beside weights of 4 bits."""

    packed = PACKED

    def layer(self) -> Any:
        """What makes the layer of a target."""
        torchao.require("qlora")
        return partial(QLoRALinear, block=self.config.qlora_block_size)

    def fill(self, filler: Filler, values: Mapping[str, Tensor], targets: tuple[Target, ...]) -> None:
        """Rank 0 packs, one weight at a time."""
        super().fill(filler, values, targets)
        for name, layer in adapted_layers(filler.model).items():
            assert isinstance(layer, QLoRALinear)
            weight = values.get(f"{name}.weight")
            parts = {} if weight is None else pack(weight.to(filler.device, layer.table.dtype), layer.block)
            for part in PACKED:
                filler.fill(f"{name}.{part}", parts.get(part))

    def dense(self, name: str, plain: nn.Module, trained: Trained) -> Tensor:
        """The dequantised weight with its adapter merged, in float32."""
        parent, _, child = name.rpartition(".")
        if child != "weight" or f"{parent}.packed" not in trained.keys:
            return super().dense(name, plain, trained)
        shape = plain.get_parameter(name).shape
        factors = trained.some(parent, (*PACKED, "A", "B"))
        weight = unpack(tuple(factors[part] for part in PACKED), shape)
        return merged({"weight": weight, "A": factors["A"], "B": factors["B"]}, self.scale)

    def lines(self, model: nn.Module, blocks: Iterable[str], targets: tuple[Target, ...]) -> list[str]:
        """What the packed weights take."""
        layers = adapted_layers(model).values()
        held = sum(local(p).nbytes for layer in layers for n, p in layer.named_parameters() if n in PACKED)
        count = sum(layer.A.shape[1] * layer.B.shape[0] for layer in layers)
        whole_bytes = sum(p.nbytes for layer in layers for n, p in layer.named_parameters() if n in PACKED)
        return [
            f"{len(layers)} weights of {count:,} elements in {whole_bytes / 2**20:,.1f} MiB, {8 * whole_bytes / count:.2f} bits each "
            f"({held / 2**20:,.1f} MiB on this rank); in bfloat16 they would take {2 * count / 2**20:,.1f} MiB"
        ]


class QLoRALinear(LoRALinear):
    """:class:`trainer.methods.lora.LoRALinear` whose frozen weight is packed."""

    packed: nn.Parameter
    scalers: nn.Parameter
    factors: nn.Parameter
    mean: nn.Parameter
    table: Tensor

    def __init__(self, linear: nn.Linear, *, rank: int, scale: float, block: int) -> None:
        """Raises ``ValueError`` where the weight is not made of whole blocks of ``block`` elements."""
        self.block = block
        super().__init__(linear, rank=rank, scale=scale)

    def hold(self, weight: nn.Parameter) -> None:
        """Room for the packed weight; values come later, but for those of NF4 itself."""
        if weight.numel() % self.block:
            raise ValueError(
                f"{weight.shape[0]} x {weight.shape[1]} weights are no whole blocks of qlora-block-size {self.block}; give less"
            )
        self.stands_for = {"packed": weight.numel(), "scalers": 0, "factors": 0, "mean": 0}
        blocks = weight.numel() // self.block
        sizes = {
            "packed": (weight.numel() // 2, torch.uint8),
            "scalers": (blocks, torch.int8),
            "factors": (blocks // math.gcd(blocks, GROUP), weight.dtype),
            "mean": (1, weight.dtype),
        }
        for name, (size, dtype) in sizes.items():
            value = torch.empty(size, dtype=dtype, device=weight.device)
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        self.register_buffer("table", _values(weight.dtype).to(weight.device))

    @property
    def weight(self) -> Tensor:
        """The dequantised weight, out x in."""
        shape = torch.Size((self.B.shape[0], self.A.shape[1]))
        return unpack((self.packed, self.scalers, self.factors, self.mean, self.table), shape)

    def base(self, x: Tensor) -> Tensor:
        """The frozen layer."""
        out: Tensor = _Linear.apply(x, self.packed, self.scalers, self.factors, self.mean, self.table, self.B.shape[0])  # type: ignore[no-untyped-call]  # fmt: skip
        return out if self.bias is None else out + self.bias


class _Linear(torch.autograd.Function):
    """``x W^T`` that keeps the packed W for backward instead of the dequantised one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, scalers: Tensor, factors: Tensor, mean: Tensor, table: Tensor, rows: int
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(packed, scalers, factors, mean, table)
        ctx.shape = (rows, x.shape[-1])
        return F.linear(x, unpack((packed, scalers, factors, mean, table), ctx.shape).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight = unpack(ctx.saved_tensors, ctx.shape)
        return grad @ weight.to(grad.dtype), None, None, None, None, None, None


def pack(weight: Tensor, block: int) -> dict[str, Tensor]:
    """The parts of :data:`PACKED` of an out x in weight, by torchao."""
    blocks = weight.numel() // block
    made = torchao.quantization().NF4Tensor.from_tensor(
        weight.detach().contiguous(), block, math.gcd(blocks, GROUP)
    )
    return {
        "packed": made.quantized_data,
        "scalers": made.quantized_scalers,
        "factors": made.quantization_factor,
        "mean": made.scaler_mean.reshape(1),
        "table": made.nf4,
    }


def unpack(parts: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
    """The weight of a shape from its parts in the order of :data:`PACKED`, in the wider dtype of ``factors`` and ``table``: what torchao's
    ``NF4Tensor.get_original_weight`` computes, on plain tensors.
    """
    packed, scalers, factors, mean, table = parts
    groups = (scalers.view(factors.shape[0], -1) / factors.unsqueeze(-1)).flatten().to(factors.dtype)
    scales = (groups + mean).unsqueeze(-1)
    elements = torch.stack([packed >> 4, packed & 0b1111], dim=-1).view(scales.shape[0], -1)
    return (table[elements.int()] * scales).view(shape)


def _values(dtype: torch.dtype) -> Tensor:
    """The 16 values of NF4."""
    made: Tensor = torchao.quantization().NF4Tensor.from_tensor(torch.ones(64, dtype=dtype), 64, 1).nf4
    return made
