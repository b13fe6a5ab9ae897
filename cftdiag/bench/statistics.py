"""The statistics of paired steps: quantiles, intervals of a median, the break-even step. Pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A median and what it lies between, by the confidence that was asked for."""

    middle: float
    low: float | None
    """None: too few values for any interval."""
    high: float | None
    count: int
    """Values that it is of."""

    def to_dict(self) -> dict[str, float | int | None]:
        """JSON-ready."""
        return {"median": self.middle, "low": self.low, "high": self.high, "count": self.count}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, between two values by a straight line. Raises
    ``ValueError`` without values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median and its distribution-free interval: the k-th smallest to the k-th largest value, with the
    largest k for which at least ``confidence`` of all samples would have their true median between (the sign
    test turned round). Six values are the fewest that have one at 95%.

    Values are taken to be independent; steps that disturb each other make the interval too narrow.
    """
    ordered = sorted(values)
    n = len(ordered)
    middle = quantile(ordered, 0.5)
    best = 0
    outside = 0.0  # chance that fewer than k of n values lie below the true median
    for k in range(1, n // 2 + 1):
        outside += math.comb(n, k - 1) / 2**n
        if 1 - 2 * outside < confidence:
            break
        best = k
    if best == 0:
        return Interval(middle=middle, low=None, high=None, count=n)
    return Interval(middle=middle, low=ordered[best - 1], high=ordered[n - best], count=n)


def paired(one: Mapping[Key, float], other: Mapping[Key, float]) -> list[tuple[float, float]]:
    """Values of both under the same key, in the order of the first."""
    return [(value, other[key]) for key, value in one.items() if key in other]


def break_even(cost: float, saved: Interval) -> tuple[int | None, int | None, int | None]:
    """(fewest, likely, most) steps after which what each saves has paid ``cost``; both in seconds. None for
    never, and for a bound that is not known.
    """

    def steps(each: float | None) -> int | None:
        return math.ceil(cost / each) if each is not None and each > 0 else None

    return steps(saved.high), steps(saved.middle), steps(saved.low)


def saving(cost: float, saved: Interval, steps: int = 1000) -> Interval:
    """Seconds that ``steps`` steps save after ``cost`` was paid; negative where they cost."""

    def after(each: float | None) -> float | None:
        return None if each is None else steps * each - cost

    middle = after(saved.middle)
    assert middle is not None
    return Interval(middle=middle, low=after(saved.low), high=after(saved.high), count=saved.count)
