"""Names of blocks, and what of a tensor differs from a guard, without a compile."""

from __future__ import annotations

import torch

from cftdiag.capture.blocks import ROOT, Blocks
from cftdiag.capture.cached_guards import tensor_differences


def test_the_nearest_block_is_a_modules_block() -> None:
    blocks = Blocks()
    blocks.named.update({"layers.0", "layers.0.mixer"})
    assert blocks.block("layers.0.mixer.linear") == "layers.0.mixer"
    assert blocks.block("layers.0.norm") == "layers.0"
    assert blocks.block("head") == "head" and blocks.block("") == ROOT


CHECK = (
    "check_tensor(L['x'], Tensor, DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU), torch.float32, "
    "device=None, requires_grad=False, size=[2, 3, 4], stride=[12, 4, 1])"
)


def test_another_layout_is_one_difference_and_another_size_hides_its_strides() -> None:
    def found(value: torch.Tensor) -> list[str]:
        return [guard.expression for guard in tensor_differences(CHECK, value)]

    assert found(torch.ones(2, 3, 4)) == []
    (stride,) = found(torch.ones(2, 4, 3).transpose(1, 2))
    assert stride.startswith("tensor 'x' stride mismatch at index 1. expected 4, actual 1")
    (size,) = found(torch.ones(2, 5, 4))
    assert size == "tensor 'x' size mismatch at index 1. expected 3, actual 5"


class DistributedDataParallel(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def test_modules_under_ddp_are_named_as_without_it() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), DistributedDataParallel(torch.nn.Linear(2, 2)))
    blocks = Blocks()
    blocks.watch(DistributedDataParallel(inner))
    assert blocks.name(inner) == ""
    assert [blocks.name(part) for part in inner] == ["0", "1"]
    assert blocks.name(inner[1].module) == "1"
    assert (blocks.cls(ROOT), blocks.cls("0"), blocks.cls("2")) == ("Sequential", "Linear", None)
