"""The forecast of a check over all ranks, as the report and the plan hold it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.forecast.lengths import Data, Shape, distinct_ranks
from cftdiag.forecast.rank_forecast import RankForecast

#: Steps at which ranks diverge that are told one by one.
_DIVERGENT = 50


def forecast_dict(
    data: Data,
    swept: Mapping[int, RankForecast],
    *,
    causes: Mapping[str, str | None] | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """``CheckReport.forecast`` for a data file.

    ``swept`` maps the first rank of each group of :func:`distinct_ranks` to its forecast;
    ``causes`` maps a compile id of the first rank to the cause of its recompile. The regime map is that of
    the first rank; other ranks' compiles are under ``ranks``.
    """
    groups = distinct_ranks(data)
    lead = min(groups)
    main = swept[lead]
    causes = causes or {}
    steps = [
        {
            "step": c.step,
            "length": c.length,
            "batch_size": c.batch_size,
            "regime": c.regime,
            "cause": causes.get(c.compile_id or ""),
            "guard": c.guard,
            "block": c.block,
            "seconds": c.seconds,
        }
        for c in main.compiles
    ]
    return {
        "compiles": len(main.compiles),
        "recompiles": main.recompiles,
        "limit_hit": main.limit_hit,
        "stopped": main.stopped,
        "steps": steps,
        "seconds": main.seconds,
        "regimes": [dict(one) for one in main.regimes],
        "exact": main.exact,
        "eager": main.eager,
        "suggestions": [dict(one) for one in main.suggestions],
        "points": [list(point) for point in main.points],
        "counts": main.counts,
        "mistaken": [list(key) for key in main.mistaken],
        "data": data.to_dict(),
        "ranks": [_rank(ranks, swept[first]) for first, ranks in groups.items()],
        "divergence": divergence(groups, swept),
        "notes": [*data.notes, *main.notes],
        "note": note,
    }


def _rank(ranks: Sequence[int], swept: RankForecast) -> dict[str, Any]:
    return {
        "ranks": list(ranks),
        "compiles": len(swept.compiles),
        "recompiles": swept.recompiles,
        "limit_hit": swept.limit_hit,
        "seconds": swept.seconds,
        "steps": [
            {"step": c.step, "microstep": c.microstep, "length": c.length, "seconds": c.seconds}
            for c in swept.compiles
        ],
        "exact": swept.exact,
    }


def divergence(groups: Mapping[int, Sequence[int]], swept: Mapping[int, RankForecast]) -> dict[str, Any]:
    """Steps at which some ranks compile while others wait for them in a collective, and the seconds they wait
    in all.

    At such a step every rank waits for the slowest; with most of a minute of compiling, a collective may time
    out.
    """
    by_step: dict[int, dict[int, float]] = {}
    for first in groups:
        for c in swept[first].compiles:
            at = by_step.setdefault(c.step, {})
            at[first] = at.get(first, 0.0) + c.seconds
    steps = []
    waiting = 0.0
    for step, at in sorted(by_step.items()):
        if len(at) == len(groups):
            continue
        slowest = max(at.values())
        waiting += slowest
        compiling = sorted(rank for first in at for rank in groups[first])
        steps.append({"step": step, "ranks": compiling, "seconds": round(slowest, 3)})
    return {"count": len(steps), "seconds": round(waiting, 3), "steps": steps[:_DIVERGENT]}


def warm_shapes(forecast: Mapping[str, Any]) -> list[Shape]:
    """Shapes that warm every regime of a forecast, in order: for the sweep that shows what is left to compile
    after warming.
    """
    found = [
        (r["representative"]["batch_size"], r["representative"]["length"], r["representative"]["variant"])
        for r in forecast["regimes"]
    ]
    return [Shape(batch, length, variant) for batch, length, variant in dict.fromkeys(found)]
