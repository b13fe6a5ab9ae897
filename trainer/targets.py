"""Which weights a method trains in factored form: every linear map of a block, found by structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

from trainer.idle import trained_blocks

Weight = TypeVar("Weight")

_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_ROUTERS = ("gate", "router", "shared_expert_gate")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def is_conv1d(module: nn.Module) -> bool:
    """True for the Linear of GPT-2, whose weight is stored in x out."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def find_targets(model: nn.Module, patterns: tuple[str, ...] = ()) -> dict[str, nn.Module]:
    """Linears (and Conv1D) inside the blocks; with ``patterns`` those whose name contains one.

    What chooses experts is left out: it maps to a number for each, and not to directions. Raises ``ValueError``
    when nothing matches, or when a pattern matches no weight at all.
    """
    linears = _linears(model)
    return _chosen(model, linears, [*linears, *_expert_weights(model)], patterns)


def find_expert_targets(model: nn.Module, patterns: tuple[str, ...] = ()) -> dict[str, nn.Parameter]:
    """The weights of experts inside the blocks, one parameter of experts x rows x columns each, by the
    parameter's name.
    """
    experts = _expert_weights(model)
    return _chosen(model, experts, [*_linears(model), *experts], patterns)


def _linears(model: nn.Module) -> dict[str, nn.Module]:
    return {
        f"{block}.{name}": module
        for block, parent in trained_blocks(model)
        for name, module in parent.named_modules()
        if (isinstance(module, nn.Linear) or is_conv1d(module)) and not _is_router(model, name, module)
    }


def _expert_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    return {
        ".".join(part for part in (block, name, own) if part): weight
        for block, parent in trained_blocks(model)
        for name, module in parent.named_modules()
        if not isinstance(module, _CONVOLUTIONS)
        for own, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3 and min(weight.shape[1:]) > 1
    }


def _is_router(model: nn.Module, name: str, module: nn.Module) -> bool:
    if name.rpartition(".")[2] not in _ROUTERS and "router" not in name:
        return False
    counts = {1, *(getattr(model.config, key, None) for key in _COUNTS)}
    return getattr(module, "out_features", None) in counts


def _chosen(
    model: nn.Module, some: Mapping[str, Weight], everything: Iterable[str], patterns: tuple[str, ...]
) -> dict[str, Weight]:
    model_type = model.config.model_type
    known = sorted({_short(name) for name in everything}) or ["none"]
    advice = f"give target patterns out of: {', '.join(known)}"
    if not patterns:
        if known == ["none"]:
            raise ValueError(f"no Linear is in the blocks of {model_type!r}; {advice}")
        return dict(some)
    for pattern in patterns:
        if not any(pattern in name for name in everything):
            raise ValueError(f"no Linear of {model_type!r} matches {pattern}; {advice}")
    return {name: value for name, value in some.items() if any(pattern in name for pattern in patterns)}


def _short(name: str) -> str:
    *_, parent, own = name.split(".")
    return f"{parent}.{own}" if own == "weight" else own
