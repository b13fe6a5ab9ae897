"""Activation checkpointing of whole blocks: none, full, or selective by operator."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from cftdiag.recipe.blocks import Blocks, set_module
from cftdiag.torch_private.world import DropoutNd, checkpoint_wrapper

#: Matrix products of aten, overloads left out: saved under ``selective`` beside attention, because they cost
#: most to compute again. The rest is recomputed.
MATRIX_PRODUCTS = frozenset(
    "mm addmm bmm baddbmm linear _scaled_mm _grouped_mm _scaled_grouped_mm convolution".split()
)


def apply_ac(model: nn.Module, blocks: Blocks, mode: str) -> Blocks:
    """Wrap each block in place; returns the blocks as they now are. State-dict names do not change."""
    if mode == "none":
        return blocks
    # Dropout must draw the same numbers in the recomputation; without dropout there is nothing to preserve.
    options: dict[str, Any] = {"preserve_rng_state": draws_random_numbers(model)}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, save_products_and_attention)
    wrapped = [(name, checkpoint_wrapper(block, **options)) for name, block in blocks]
    for name, block in wrapped:
        set_module(model, name, block)
    return wrapped


def save_products_and_attention(
    context: object, op: Any, *args: object, **kwargs: object
) -> CheckpointPolicy:
    """Policy of selective checkpointing: keep what matrix products and attention return."""
    return CheckpointPolicy.MUST_SAVE if is_saved(op) else CheckpointPolicy.PREFER_RECOMPUTE


def is_saved(op: Any) -> bool:
    """True for an operator (overload or higher-order) whose result ``selective`` keeps.

    Attention goes by its name: flash kernels are operators of the package that brings them.
    """
    name = op.name() if hasattr(op, "_schema") else str(op)
    namespace, _, operator = name.rpartition("::")
    packet = operator.split(".")[0]
    if namespace in ("", "aten") and packet in MATRIX_PRODUCTS:
        return True
    return "backward" not in packet and any(word in name for word in ("attention", "attn", "flash"))


def draws_random_numbers(model: nn.Module) -> bool:
    """True when a dropout of the model, or one that its config asks for, is not zero."""
    config: Any = getattr(model, "config", None)
    settings: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    if any(_drops(name, value) for name, value in settings.items()):
        return True
    return any(
        (isinstance(module, DropoutNd) and module.p > 0)
        or any(_drops(name, value) for name, value in vars(module).items())
        for module in model.modules()
    )


def _drops(name: str, value: object) -> bool:
    return "drop" in name and isinstance(value, float) and value > 0
