"""Targets of a plain model become OSFTLinears, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from cftdiag.recipe.blocks import set_module
from trainer.osft.linear import OSFTLinear, compose, decompose
from trainer.osft.ranks import high_rank
from trainer.targets import find_targets, is_conv1d


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One target weight and what was decided for it."""

    name: str
    rows: int
    """Outputs."""
    columns: int
    """Inputs."""
    high: int
    """Frozen directions; 0: plain trainable Linear, min(rows, columns): frozen Linear."""
    transposed: bool
    """Stored in x out (Conv1D)."""

    @property
    def kind(self) -> str:
        """``split``, ``trained`` (left as it is) or ``frozen``."""
        return (
            "trained"
            if self.high == 0
            else "frozen"
            if self.high == min(self.rows, self.columns)
            else "split"
        )

    @property
    def cost(self) -> int:
        """Relative cost of the decomposition."""
        return self.rows * self.columns * min(self.rows, self.columns)


def plan(
    model: nn.Module, unfreeze: float | Mapping[str, float], patterns: tuple[str, ...] = ()
) -> list[Target]:
    """What becomes of each target at an unfreeze ratio, one for all or by name. Raises ``ValueError`` when
    nothing matches.
    """
    targets = []
    for name, module in find_targets(model, patterns).items():
        transposed = is_conv1d(module)
        rows, columns = module.weight.shape[::-1] if transposed else module.weight.shape
        ratio = unfreeze if isinstance(unfreeze, (int, float)) else unfreeze[name]
        targets.append(
            Target(
                name=name,
                rows=rows,
                columns=columns,
                high=high_rank(rows, columns, ratio),
                transposed=transposed,
            )
        )
    return targets


def split(model: nn.Module, targets: list[Target]) -> None:
    """Replace the targets in place by OSFTLinears with unset factors, on the device of the weight (meta as a
    rule).
    """
    for target in targets:
        linear = model.get_submodule(target.name)
        if target.kind == "frozen":
            linear.weight.requires_grad_(False)
        elif target.kind == "split":
            weight = linear.weight
            layer = OSFTLinear(
                target.columns,
                target.rows,
                high=target.high,
                bias=linear.bias is not None,
                dtype=weight.dtype,
                device=weight.device,
            )
            set_module(model, target.name, layer)


def split_and_decompose(
    model: nn.Module, targets: list[Target], *, upcast: torch.dtype = torch.float32
) -> None:
    """:func:`split` of a model that has its weights, in one process: decomposes each target."""
    dense = {t.name: model.get_submodule(t.name) for t in targets if t.kind == "split"}
    split(model, targets)
    with torch.no_grad():
        for target in targets:
            if target.name in dense:
                old, new = dense[target.name], model.get_submodule(target.name)
                weight = old.weight.detach()
                for factor, value in decompose(
                    weight.T if target.transposed else weight, target.high, upcast=upcast
                ).items():
                    getattr(new, factor).copy_(value)
                if old.bias is not None:
                    new.bias.copy_(old.bias)


def restore(model: nn.Module, *, upcast: torch.dtype = torch.float32) -> list[str]:
    """Put dense Linears back in place of every OSFTLinear; returns their names.

    Needed before a second decomposition: a split target has another name and would not be found. A Conv1D
    comes back as a Linear of the same function. Frozen targets become trainable again.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, OSFTLinear)]
    with torch.no_grad():
        for name in names:
            layer = model.get_submodule(name)
            rows, columns = layer.U_high.shape[0], layer.V_high.shape[1]
            linear = nn.Linear(
                columns,
                rows,
                bias=layer.bias is not None,
                dtype=layer.U_high.dtype,
                device=layer.U_high.device,
            )
            linear.weight.copy_(compose(dict(layer.named_parameters()), upcast=upcast))
            if layer.bias is not None:
                linear.bias.copy_(layer.bias)
            set_module(model, name, linear)
    model.requires_grad_(True)
    return names
