"""Targets of a plain model become OSFTLinears, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from cftdiag.recipe.blocks import set_module
from trainer.osft.experts import SUFFIX, OSFTExperts, install, uninstall
from trainer.osft.linear import FACTORS, OSFTLinear, compose, decompose
from trainer.osft.ranks import high_rank, ratio_patterns
from trainer.targets import find_expert_targets, find_targets, is_conv1d


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
    experts: int = 0
    """Number of such weights in one parameter, each decomposed by itself; 0 for a Linear."""

    @property
    def holder(self) -> str:
        """Name of the module that holds the factors of a split target."""
        return self.name + SUFFIX if self.experts else self.name

    @property
    def source(self) -> str:
        """Name of the plain model's parameter."""
        return self.name if self.experts else f"{self.name}.weight"

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of the plain model's parameter."""
        if self.experts:
            return (self.experts, self.rows, self.columns)
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

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
        return max(self.experts, 1) * self.rows * self.columns * min(self.rows, self.columns)


def plan(
    model: nn.Module,
    unfreeze: float | Mapping[str, float],
    patterns: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
) -> list[Target]:
    """What becomes of each target at an unfreeze ratio, one for all or by name. ``overrides`` are
    ``PATTERN=RATIO`` for the targets whose name contains the pattern; the last that fits counts. Raises
    ``ValueError`` when nothing matches.
    """
    shapes: list[tuple[str, tuple[int, int], bool, int]] = []
    for name, module in find_targets(model, patterns).items():
        transposed = is_conv1d(module)
        rows, columns = module.weight.shape[::-1] if transposed else module.weight.shape
        shapes.append((name, (rows, columns), transposed, 0))
    for name, weight in find_expert_targets(model, patterns).items():
        shapes.append((name, (weight.shape[1], weight.shape[2]), False, weight.shape[0]))
    own = ratio_patterns(overrides)
    for pattern in own:
        if not any(pattern in name for name, *_ in shapes):
            raise ValueError(f"osft-rank-pattern: no target's name contains {pattern!r}")
    targets = []
    for name, (rows, columns), transposed, experts in shapes:
        ratio = unfreeze if isinstance(unfreeze, (int, float)) else unfreeze[name]
        ratio = next((value for pattern, value in reversed(own.items()) if pattern in name), ratio)
        high = high_rank(rows, columns, ratio)
        targets.append(
            Target(name=name, rows=rows, columns=columns, high=high, transposed=transposed, experts=experts)
        )
    return targets


def split(model: nn.Module, targets: list[Target]) -> None:
    """Replace the targets in place by OSFTLinears with unset factors, on the device of the weight (meta as a
    rule).
    """
    for target in targets:
        weight = model.get_parameter(target.source)
        if target.kind == "frozen":
            weight.requires_grad_(False)
        elif target.kind == "split" and target.experts:
            owner, _, own = target.name.rpartition(".")
            factors = OSFTExperts(
                target.experts,
                target.rows,
                target.columns,
                high=target.high,
                dtype=weight.dtype,
                device=weight.device,
            )
            install(model.get_submodule(owner), own, factors)
        elif target.kind == "split":
            linear = model.get_submodule(target.name)
            layer = OSFTLinear(
                target.columns,
                target.rows,
                high=target.high,
                bias=linear.bias is not None,
                dtype=weight.dtype,
                device=weight.device,
            )
            set_module(model, target.name, layer)


def freeze_beside(model: nn.Module, targets: Sequence[Target], blocks: Sequence[str], beside: str) -> None:
    """Freeze what is no target of a split model, but for what ``beside`` names: ``all`` of it, what is in the
    ``blocks`` (names), or ``none``. What peft's OSF trains is ``none``.
    """
    own = {t.source for t in targets if t.kind == "trained"}
    own |= {f"{t.holder}.{factor}" for t in targets if t.kind == "split" for factor in FACTORS}
    inside = tuple(f"{block}." for block in blocks) if beside == "blocks" else ()
    for name, parameter in model.named_parameters():
        if beside != "all" and name not in own and not name.startswith(inside):
            parameter.requires_grad_(False)


def split_and_decompose(
    model: nn.Module, targets: list[Target], *, upcast: torch.dtype = torch.float32
) -> None:
    """:func:`split` of a model that has its weights, in one process: decomposes each target."""
    dense = {t.name: model.get_parameter(t.source).detach() for t in targets if t.kind == "split"}
    biases = {
        t.name: model.get_submodule(t.name).bias for t in targets if t.kind == "split" and not t.experts
    }
    split(model, targets)
    with torch.no_grad():
        for target in targets:
            if target.name not in dense:
                continue
            weight, holder = dense[target.name], model.get_submodule(target.holder)
            for factor, value in decompose(
                weight.T if target.transposed else weight, target.high, upcast=upcast
            ).items():
                holder.get_parameter(factor).copy_(value)
            if biases.get(target.name) is not None:
                holder.get_parameter("bias").copy_(biases[target.name])


def restore(model: nn.Module, *, upcast: torch.dtype = torch.float32) -> list[str]:
    """Put dense weights back in place of all factors; returns their names.

    Needed before a second decomposition: a split target has another name and would not be found. A Conv1D
    comes back as a Linear of the same function. Frozen targets become trainable again.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, OSFTLinear)]
    experts = [n.removesuffix(SUFFIX) for n, m in model.named_modules() if isinstance(m, OSFTExperts)]
    with torch.no_grad():
        for name in reversed(experts):
            owner, _, own = name.rpartition(".")
            uninstall(model.get_submodule(owner), own, upcast=upcast)
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
    return names + experts
