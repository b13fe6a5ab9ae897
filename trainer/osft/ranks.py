"""How many singular directions of each target are frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LEVELS = 3
"""Most distinct ratios under adaptive ranks. Parameter shapes are static in a graph, so that each ratio is a
compile of its own, once for training and once more for validation: with a ratio per layer a deep model would
run into torch's limit of 8.
"""

MIN_RETAINED = 0.1
"""Least share of frozen directions under adaptive ranks (arXiv 2504.07097: mrr)."""


def high_rank(rows: int, columns: int, unfreeze: float) -> int:
    """Frozen directions of a rows x columns weight: floor(R (1 - unfreeze)), R = min(rows, columns).

    0 only for ``unfreeze`` = 1 (a plain Linear) and R only for ``unfreeze`` = 0 (a frozen one); in between at
    least one of each stays.
    """
    rank = min(rows, columns)
    if unfreeze >= 1:
        return 0
    if unfreeze <= 0:
        return rank
    # 1 - 0.7 is 0.30000000000000004: rounding first keeps floor() from losing a rank to the last bit.
    return min(max(math.floor(round(rank * (1 - unfreeze), 9)), 1), rank - 1)


def adaptive(importance: Sequence[float], unfreeze: float) -> list[float]:
    """Unfreeze ratio of each layer from its importance: r(l) = mrr + I(l) (trr - mrr) directions are frozen,
    I normalised to mean 1.

    ``trr`` is 1 - ``unfreeze``, so that the mean over layers is the ratio that was asked for (before it is
    cut to 0..1). Layers of like importance share the mean of their ratios: :data:`LEVELS` groups of equal
    size.
    """
    target = 1 - unfreeze
    least = min(MIN_RETAINED, target)
    mean = sum(importance) / len(importance)
    if not mean > 0:
        raise ValueError(f"layer importances must be positive on average, not {mean}")
    ratios = [1 - min(max(least + (value / mean) * (target - least), 0.0), 1.0) for value in importance]
    order = sorted(range(len(ratios)), key=lambda i: ratios[i])
    for level in range(LEVELS):
        group = order[level * len(order) // LEVELS : (level + 1) * len(order) // LEVELS]
        shared = sum(ratios[i] for i in group) / max(len(group), 1)
        for i in group:
            ratios[i] = shared
    return ratios


def by_target(names: Sequence[str], blocks: Sequence[str], ratios: Sequence[float]) -> Mapping[str, float]:
    """Ratio of each target from the ratio of the block that it is in."""
    by_block = dict(zip(blocks, ratios, strict=True))
    return {
        name: next(ratio for block, ratio in by_block.items() if name.startswith(block + "."))
        for name in names
    }


def ratio_patterns(texts: Sequence[str]) -> dict[str, float]:
    """``PATTERN=RATIO`` as a mapping, in order. Raises ``ValueError`` for what is none."""
    found = {}
    for text in texts:
        pattern, equals, ratio = text.rpartition("=")
        try:
            value = float(ratio)
        except ValueError:
            value = math.nan
        if not (equals and pattern and 0 <= value <= 1):
            raise ValueError(
                f"osft-rank-pattern is PATTERN=RATIO with a share between 0 and 1, such as mlp=0.5, not {text!r}"
            )
        found[pattern] = value
    return found
