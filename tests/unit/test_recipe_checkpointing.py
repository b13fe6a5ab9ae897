"""Selective checkpointing: which of all operators are kept, and when random numbers are."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from cftdiag.recipe.activation_checkpointing import (
    draws_random_numbers,
    is_saved,
    save_products_and_attention,
)

KEPT = {
    "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm",
    "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable", "_flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace",
    "_efficient_attention_forward", "_cudnn_attention_forward", "_native_multi_head_attention", "_triton_multi_head_attention",
    "_triton_scaled_dot_attention",
}  # fmt: skip


def _overloads() -> list[torch._ops.OpOverload]:
    found = []
    for qualified in {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}:
        packet = getattr(torch.ops.aten, qualified.removeprefix("aten::"), None)
        found += [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    return found


def test_of_all_operators_matrix_products_and_attention_are_kept() -> None:
    overloads = _overloads()
    kept = {op._schema.name.removeprefix("aten::") for op in overloads if is_saved(op)}
    assert len(overloads) > 2000
    # What this torch has not is not expected; what it has beyond the table is a decision to be made.
    known = {op._schema.name.removeprefix("aten::") for op in overloads}
    assert kept - KEPT == set()
    assert (KEPT & known) - kept == set()
    assert {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "convolution"} <= kept


def test_attention_of_other_packages_and_of_higher_order_is_kept() -> None:
    import torch.nn.attention.varlen

    from cftdiag.recipe import flash_kernels  # noqa: F401 - registers the stand-ins

    assert is_saved(torch.ops.higher_order.flex_attention)
    assert not is_saved(torch.ops.higher_order.flex_attention_backward)
    assert is_saved(torch.ops.torch_attn._varlen_attn.default)
    assert is_saved(torch.ops.cftdiag.flash_attention.default)
    assert not is_saved(torch.ops.cftdiag.flash_attention_backward.default)
    assert not is_saved(torch.ops.aten.silu.default)


def test_the_policy_keeps_or_recomputes() -> None:
    assert save_products_and_attention(None, torch.ops.aten.mm.default) == CheckpointPolicy.MUST_SAVE
    assert save_products_and_attention(None, torch.ops.aten.mul.Tensor) == CheckpointPolicy.PREFER_RECOMPUTE


def test_random_numbers_are_kept_for_a_dropout_that_is_not_zero() -> None:
    class Functional(nn.Module):
        attention_dropout = 0.0

        def __init__(self, share: float) -> None:
            super().__init__()
            self.attention_dropout = share

    assert not draws_random_numbers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), Functional(0.0)))
    assert draws_random_numbers(nn.Sequential(nn.Dropout(0.1)))
    assert draws_random_numbers(nn.Sequential(Functional(0.1)))
