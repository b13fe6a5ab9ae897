"""Orthogonal subspace fine-tuning: targets are split along their singular directions, and the low ones are
trained. The mathematics are in :mod:`trainer.osft`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.idle import trained_blocks
from trainer.methods.method import Known, Method, Trained, first_like_the_others
from trainer.model import dtype_of
from trainer.osft import surgery
from trainer.osft.coverage import coverage
from trainer.osft.experts import SUFFIX
from trainer.osft.importance import layer_importance
from trainer.osft.linear import FACTORS, compose
from trainer.osft.ranks import adaptive, by_target
from trainer.osft.surgery import Target
from trainer.targets import is_conv1d
from trainer.weights import Filler, decompose_spread, plain_names


class OSFT(Method):
    """Factors in place of the targets' weights; multiplied out at export."""

    def change(self, model: nn.Module, known: Known) -> tuple[Target, ...]:
        """Split the targets. Only adaptive ranks with ``known.calibration`` need a process group."""
        config = self.config
        unfreeze = self._unfreeze(model, known)
        targets = surgery.plan(model, unfreeze, config.osft_target_patterns, config.osft_rank_pattern)
        if known.ranks is not None:
            targets = _with_ranks(targets, known.ranks)
        surgery.split(model, targets)
        surgery.freeze_beside(model, targets, [name for name, _ in trained_blocks(model)], config.osft_beside)
        if config.osft_beside != "all":
            first_like_the_others(model, config)
        return tuple(targets)

    def _unfreeze(self, model: nn.Module, known: Known) -> float | Mapping[str, float]:
        config = self.config
        if config.osft_ranks != "adaptive" or known.calibration is None:
            return config.unfreeze_ratio
        shared = [layer_importance(known.plain, known.calibration) if known.plain is not None else None]
        dist.broadcast_object_list(shared, src=0)
        assert shared[0] is not None
        names = [t.name for t in surgery.plan(model, 0.5, config.osft_target_patterns)]
        return by_target(names, list(shared[0]), adaptive(list(shared[0].values()), config.unfreeze_ratio))

    def fill(self, filler: Filler, values: Mapping[str, Tensor], targets: tuple[Target, ...]) -> None:
        """Each target is decomposed once, by one rank."""
        split = {t.holder: t for t in targets if t.kind == "split"}
        for name in plain_names(filler.model):
            parent, _, child = name.rpartition(".")
            if parent not in split or child not in FACTORS:
                filler.fill(name, values.get(name))
        upcast = dtype_of(self.config.osft_upcast_dtype)
        decompose_spread(filler, values, list(split.values()), upcast=upcast)

    def dense(self, name: str, plain: nn.Module, trained: Trained) -> Tensor:
        """The product of the factors, in float32 or wider."""
        parent, _, child = name.rpartition(".")
        if f"{name}{SUFFIX}.U_high" in trained.keys:
            return _product(trained.some(name + SUFFIX, FACTORS))
        if child == "weight" and f"{parent}.U_high" in trained.keys:
            weight = _product(trained.some(parent, FACTORS))
            return weight.T if is_conv1d(plain.get_submodule(parent)) else weight
        return super().dense(name, plain, trained)

    def lines(self, model: nn.Module, blocks: Iterable[str], targets: tuple[Target, ...]) -> list[str]:
        """A line for each shape and rank, and how much of the blocks is covered."""
        return [*_table(targets), *coverage(model, blocks, targets).lines()]


def _with_ranks(targets: list[Target], ranks: Mapping[str, int]) -> list[Target]:
    if ranks.keys() != {t.name for t in targets}:
        raise ValueError(
            "the checkpoint has other OSFT targets than this model; give the model and the options that it was trained with"
        )
    for target in targets:
        if ranks[target.name] > (most := min(target.rows, target.columns)):
            raise ValueError(
                f"the checkpoint is of another model: it has {ranks[target.name]} frozen directions of {target.name}, "
                f"which has {most} here; give the model that it was trained with"
            )
    return [dataclasses.replace(t, high=ranks[t.name]) for t in targets]


def _product(factors: dict[str, Tensor]) -> Tensor:
    return compose(factors, upcast=torch.promote_types(factors["U_high"].dtype, torch.float32))


def _table(targets: Iterable[Target]) -> list[str]:
    groups: dict[tuple[str, int, int, int, str], int] = {}
    for t in targets:
        key = (t.name.rpartition(".")[2], t.rows, t.columns, t.high, t.kind)
        groups[key] = groups.get(key, 0) + max(t.experts, 1)
    return [
        f"target {name}: {count} x {rows} x {columns}, {high} directions frozen, {min(rows, columns) - high} trained ({kind})"
        for (name, rows, columns, high, kind), count in groups.items()
    ]
