"""Which padding or bucketing would let the data meet fewer regimes, and what it costs in padding. Pure;
predicted from the present guards.

A padded run compiles for other lengths, and guards depend on the length compiled for: a suggestion is proved
by checking again with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cftdiag.forecast.lengths import Shape
from cftdiag.forecast.regime_map import RegimeMap, is_static

MULTIPLES = (8, 16, 32, 64, 128, 256)
BUCKETS = (1, 2, 4, 8)
#: Buckets end at a multiple of this, as tensor cores and most guards like it.
_GRAIN = 64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """One way to pad. ``graphs`` counts the regimes visited, each length without one counted as a graph of
    its own where lengths are static.
    """

    action: str
    """``pad`` to a multiple or ``bucket`` to fixed lengths."""
    multiple: int | None
    buckets: tuple[int, ...]
    graphs: int
    new_shapes: int
    """Distinct shapes that no present graph serves: they would compile."""
    extra_tokens: float
    """Padding added, as a share of the tokens forwarded now."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "buckets": list(self.buckets),
            "extra_tokens": round(self.extra_tokens, 4),
        }


def suggest(found: RegimeMap, shapes: Sequence[Shape], *, longest: int | None = None) -> list[Suggestion]:
    """Ways to pad that need fewer graphs than now, fewest first, then least padding; [] when nothing helps.

    ``longest`` is the most tokens that a row may have; no padding goes beyond.
    """
    if not shapes:
        return []
    lengths = np.array([s.length for s in shapes])
    batches = np.array([s.batch_size for s in shapes])
    visits = np.array([s.visits for s in shapes])
    variants = [s.variant for s in shapes]
    now = len(found.regimes) + len({s.key for s in found.eager})
    best: dict[tuple[str, int], Suggestion] = {}
    for action, multiple, buckets, padded in _paddings(lengths, batches, visits, longest):
        graphs, new = _graphs(found, batches, padded, variants)
        extra = float((batches * (padded - lengths) * visits).sum() / (batches * lengths * visits).sum())
        suggestion = Suggestion(
            action=action,
            multiple=multiple,
            buckets=buckets,
            graphs=graphs,
            new_shapes=new,
            extra_tokens=extra,
        )
        known = best.get((action, graphs))
        if graphs < now and (known is None or extra < known.extra_tokens):
            best[action, graphs] = suggestion
    return sorted(best.values(), key=lambda s: (s.graphs, s.extra_tokens))


def _paddings(
    lengths: np.ndarray[Any, Any],
    batches: np.ndarray[Any, Any],
    visits: np.ndarray[Any, Any],
    longest: int | None,
) -> Iterator[tuple[str, int | None, tuple[int, ...], np.ndarray[Any, Any]]]:
    limit = longest or int(lengths.max()) * 2 + max(MULTIPLES)
    for multiple in MULTIPLES:
        padded = -(-lengths // multiple) * multiple
        yield "pad", multiple, (), np.where(padded <= limit, padded, np.maximum(lengths, limit))
    for count in BUCKETS:
        buckets = _quantiles(lengths, batches * visits, count, limit)
        yield "bucket", None, buckets, np.array(buckets)[np.searchsorted(buckets, lengths)]


def _quantiles(
    lengths: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], count: int, limit: int
) -> tuple[int, ...]:
    """Bucket ends that hold about equal shares of the rows, the last one the longest."""
    order = np.argsort(lengths)
    shares = np.cumsum(weights[order]) / weights.sum()
    most = int(lengths.max())
    top = max(min(_rounded(most), limit), most)
    ends = [
        int(lengths[order][min(int(np.searchsorted(shares, (i + 1) / count)), len(order) - 1)])
        for i in range(count - 1)
    ]
    return tuple(sorted({min(_rounded(end), top) for end in ends} | {top}))


def _rounded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN


def _graphs(
    found: RegimeMap, batches: np.ndarray[Any, Any], padded: np.ndarray[Any, Any], variants: Sequence[str]
) -> tuple[int, int]:
    """(graphs that the padded shapes need, how many distinct shapes no present graph serves)."""
    at = np.full(padded.shape, -1)
    kinds = np.array(variants)
    for variant in set(variants):
        mask = kinds == variant
        at[mask] = found.lookup(batches[mask], padded[mask], variant)
    served = {int(i) for i in at if i >= 0}
    new = {(int(b), int(s), v) for b, s, v, i in zip(batches, padded, variants, at, strict=True) if i < 0}
    static = bool(found.regimes) and all(is_static(r) for r in found.regimes)
    # where sizes are symbolic, one more graph may serve all of the rest; where they are not, each shape needs
    # its own
    return len(served) + (len(new) if static else min(len(new), 1)), len(new)
