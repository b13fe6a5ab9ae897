"""Figures of a forecast: the regime map over batch size and length, and when the run compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Colours that stay apart for most kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_EAGER = "#000000"
#: Regimes that the legend writes out.
_NAMED = 12


def regime_figure(forecast: Mapping[str, Any]) -> Any:
    """The map of ``CheckReport.forecast`` as a matplotlib figure.

    Above: each shape of the data at (length, batch size), coloured by its regime, areas by visits, representatives marked; below: tokens forwarded by
    length. Raises ``ValueError`` for a forecast without a regime map.
    """
    points = forecast.get("points")
    if not points:
        raise ValueError("this forecast has no regime map; make one with `cftdiag check --data FILE`")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    regimes = list(forecast.get("regimes") or ())
    most = max(visits for *_, visits in points)
    for i, regime in enumerate(regimes):
        own = [p for p in points if p[0] == regime["id"]]
        label = _label(regime) if i < _NAMED else None
        upper.scatter(*_places(own), s=_areas(own, most), color=_COLOURS[i % len(_COLOURS)], alpha=0.75, label=label, linewidths=0)
    eager = [p for p in points if p[0] is None]
    if eager:
        upper.scatter(*_places(eager), s=_areas(eager, most), color=_EAGER, marker="x", label="no graph: eager or not foreseen")
    shown = [r["representative"] for r in regimes]
    upper.scatter([r["length"] for r in shown], [r["batch_size"] for r in shown], marker="+", s=120, color="black", label="warm with this", zorder=3)
    sizes = sorted({p[1] for p in points} | {r["batch_size"] for r in shown})
    if len(sizes) <= 12:
        upper.set_yticks(sizes)
    upper.set_ylim(min(sizes) - 0.8, max(sizes) + 0.8)
    upper.set_ylabel("batch size B (rows)")
    upper.set_title(_title(forecast, len(regimes)))
    # outside of the axes, below the figure: bounds are long and must hide no point
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    _histogram(lower, points)
    return figure


def save_plots(forecast: Mapping[str, Any], directory: str | Path) -> list[Path]:
    """Write ``regimes.png`` and ``regimes.svg`` into ``directory`` (made when missing); raises ``ValueError`` where that cannot be done."""
    figure = regime_figure(forecast)
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        paths = [target / "regimes.png", target / "regimes.svg"]
        for path in paths:
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise ValueError(f"cannot write plots into {directory}: {error.strerror or error}") from error
    return paths


def _title(forecast: Mapping[str, Any], regimes: int) -> str:
    def counted(n: int, what: str) -> str:
        return f"{n} {what}" + ("" if n == 1 else "s")

    text = f"{counted(forecast['compiles'], 'compile')} in {counted(regimes, 'regime')}"
    limit = forecast.get("limit_hit")
    return f"{text}; recompile limit hit at step {limit['step']}" if limit else text


def _label(regime: Mapping[str, Any]) -> str:
    bounds = ", ".join(regime["bounds"]) or "any shape"
    if len(bounds) > 60:
        bounds = bounds[:57] + "..."
    variants = [v for v in regime.get("variants", ()) if v]
    return f"{regime['id']}: {bounds}" + (f" ({', '.join(variants)})" if variants else "") + f" - {regime['visits']:,}x"


def _places(points: Sequence[Sequence[Any]]) -> tuple[list[int], list[int]]:
    return [p[2] for p in points], [p[1] for p in points]


def _areas(points: Sequence[Sequence[Any]], most: int) -> list[float]:
    return [16 + 184 * p[3] / most for p in points]


def _histogram(axes: Any, points: Sequence[Sequence[Any]]) -> None:
    lengths = [p[2] for p in points]
    axes.hist(lengths, bins=min(60, max(1, len(set(lengths)))), weights=[p[1] * p[2] * p[3] for p in points], color="#999999")
    axes.set_xlabel("length S (tokens)")
    axes.set_ylabel("tokens")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 4))
