"""How much of a model OSFT protects: what is decomposed or frozen, and what is trained in full beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from torch import nn

from cftdiag.torch_private.wrappers import strip
from trainer.idle import idle_modules
from trainer.osft.linear import FACTORS
from trainer.osft.surgery import Target

LEAST = 0.9
"""A share of the blocks' parameters below which the user is warned."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Parameters of the plain model, by what becomes of them."""

    covered: int
    """In the blocks, decomposed or frozen."""
    inside: dict[str, int]
    """In the blocks and trained in full, by kind (the name without its block), the largest first."""
    outside: dict[str, int]
    """Outside of the blocks and trained in full."""
    still: dict[str, int]
    """Outside of the blocks and frozen."""

    @property
    def share(self) -> float:
        """Of the blocks' parameters."""
        total = self.covered + sum(self.inside.values())
        return self.covered / total if total else 0.0

    def lines(self) -> list[str]:
        """For people."""
        blocks = self.covered + sum(self.inside.values())
        everything = blocks + sum(self.outside.values()) + sum(self.still.values())
        text = f"OSFT covers {self.share:.1%} of the parameters in the blocks"
        if self.inside:
            text += f"; trained in full there: {_list(self.inside, blocks)}"
        lines = [text]
        if self.outside:
            lines.append(
                f"outside of the blocks OSFT protects nothing; trained in full: {_list(self.outside, everything)} of the model"
            )
        if self.still:
            lines.append(f"frozen outside of the blocks: {_list(self.still, everything)} of the model")
        if self.share < LEAST:
            lines.append(
                f"warning: OSFT protects only {self.share:.1%} of the parameters in the blocks; the others are trained in full "
                "and may forget. Name more by --osft-target-patterns"
            )
        return lines


def coverage(model: nn.Module, blocks: Iterable[str], targets: Sequence[Target]) -> Coverage:
    """Of a model, split or not yet, whose blocks have these names; without what a step never calls."""
    idle = tuple(f"{name}." for name in idle_modules(model))
    prefixes = tuple(f"{block}." for block in blocks)
    protected = {t.source for t in targets if t.kind != "trained"}
    holders = {t.holder for t in targets if t.kind == "split"}
    covered = sum(math.prod(t.stored) for t in targets if t.kind != "trained")
    inside: dict[str, int] = {}
    outside: dict[str, int] = {}
    still: dict[str, int] = {}
    for long_name, parameter in model.named_parameters():
        name = strip(long_name)
        if name.startswith(idle):
            continue
        parent, _, child = name.rpartition(".")
        if name in protected or (parent in holders and child in FACTORS):
            continue
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is not None and not parameter.requires_grad:
            covered += parameter.numel()
            continue
        frozen = prefix is None and not parameter.requires_grad
        kinds = still if frozen else outside if prefix is None else inside
        kind = name if prefix is None else name.removeprefix(prefix)
        kinds[kind] = kinds.get(kind, 0) + parameter.numel()
    return Coverage(covered=covered, inside=_sorted(inside), outside=_sorted(outside), still=_sorted(still))


def _sorted(kinds: dict[str, int]) -> dict[str, int]:
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _list(kinds: dict[str, int], total: int, most: int = 4) -> str:
    shown = [f"{name} {count / total:.1%}" for name, count in list(kinds.items())[:most]]
    if len(kinds) > most:
        shown.append(f"{len(kinds) - most} more {sum(list(kinds.values())[most:]) / total:.1%}")
    return ", ".join(shown)
