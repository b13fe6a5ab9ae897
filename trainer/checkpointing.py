"""Activation checkpointing of whole blocks: none, full, or selective by operator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from trainer.model import set_module

_aten = torch.ops.aten
#: Saved under `selective`: what costs most to compute again. The rest is recomputed.
SAVED = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)


def apply_ac(model: nn.Module, blocks: Mapping[str, nn.Module], mode: str) -> dict[str, nn.Module]:
    """Wrap each block in place; returns the blocks as they now are. State-dict names do not change."""
    if mode == "none":
        return dict(blocks)
    # Dropout must draw the same numbers in the recomputation; without dropout there is nothing to preserve.
    options: dict[str, Any] = {"preserve_rng_state": _draws_random_numbers(model)}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    wrapped = {}
    for name, block in blocks.items():
        wrapped[name] = checkpoint_wrapper(block, **options)
        set_module(model, name, wrapped[name])
    return wrapped


def _policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def _draws_random_numbers(model: nn.Module) -> bool:
    config = model.config
    return any(
        isinstance(value, float) and value > 0 for key, value in config.to_dict().items() if "drop" in key
    )
