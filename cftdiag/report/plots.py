"""Figures of a forecast: the regime map over batch size and length, and when the run compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from cftdiag.escape import escaped

#: Colours that stay apart for most kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_EAGER = "#000000"
#: Batch sizes up to which each has a band of its own.
_BANDS = 12
#: Regimes that the legend writes out.
_NAMED = 12


def regime_figure(forecast: Mapping[str, Any]) -> Any:
    """The map of ``CheckReport.forecast`` as a matplotlib figure.

    Above: each shape of the data at (length, batch size), coloured by its regime, areas by visits,
    representatives marked; below: tokens forwarded by length. Raises ``ValueError`` for a forecast without a
    regime map.
    """
    points = forecast.get("points")
    if not points:
        raise ValueError("this forecast has no regime map; make one with `cftdiag check --data FILE`")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    regimes = list(forecast.get("regimes") or ())
    place = _Places(points, regimes)
    shared = set.intersection(*(set(r["bounds"]) for r in regimes)) if len(regimes) > 1 else set()
    for i, regime in enumerate(regimes):
        own = [p for p in points if p[0] == regime["id"]]
        label = _label(regime, shared) if i < _NAMED else None
        upper.scatter(
            *place(own, i),
            s=place.areas(own),
            color=_COLOURS[i % len(_COLOURS)],
            alpha=0.75,
            label=label,
            linewidths=0,
        )
    eager = [p for p in points if p[0] is None]
    if eager:
        upper.scatter(
            *place(eager, len(regimes)),
            s=place.areas(eager),
            color=_EAGER,
            marker="x",
            label="no graph: eager or not foreseen",
        )
    for i, regime in enumerate(regimes):
        shown = regime["representative"]
        where = place([[regime["id"], shown["batch_size"], shown["length"], 1]], i)
        upper.scatter(
            *where, marker="+", s=120, color="black", label=None if i else "warm with this", zorder=3
        )
    place.ticks(upper)
    upper.set_ylabel("batch size B (rows)")
    upper.set_title(_title(forecast, len(regimes)))
    # outside of the axes, below the figure: bounds are long and must hide no point
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    _histogram(lower, points)
    return figure


def regime_svg(forecast: Mapping[str, Any]) -> str:
    """:func:`regime_figure` as an ``<svg>`` element to stand in a page: text as text, no header, the same for
    the same forecast.
    """
    import io

    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cftdiag"}):
        regime_figure(forecast).savefig(
            out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_plots(forecast: Mapping[str, Any], directory: str | Path) -> list[Path]:
    """Write ``regimes.png`` and ``regimes.svg`` into ``directory`` (made when missing); raises ``ValueError``
    where that cannot be done.
    """
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


def _label(regime: Mapping[str, Any], shared: Set[str]) -> str:
    """A regime by its bounds, without those of all regimes, which tell nothing apart."""
    own = [bound for bound in regime["bounds"] if bound not in shared]
    bounds = ", ".join(own or regime["bounds"]) or "any shape"
    if len(bounds) > 60:
        bounds = bounds[:57] + "..."
    variants = [v for v in regime.get("variants", ()) if v]
    text = (
        f"{regime['id']}: {bounds}"
        + (f" ({', '.join(variants)})" if variants else "")
        + f" - {regime['visits']:,}x"
    )
    return escaped(text).replace("$", r"\$")  # no mathematics to Matplotlib


class _Places:
    """Where shapes are drawn: few batch sizes are bands in which each regime has a line of its own, so that
    no regime hides another.
    """

    def __init__(self, points: Sequence[Sequence[Any]], regimes: Sequence[Mapping[str, Any]]) -> None:
        self.sizes = sorted({p[1] for p in points} | {r["representative"]["batch_size"] for r in regimes})
        self.lanes = len(regimes) + any(p[0] is None for p in points)
        self.most = max(p[3] for p in points)
        self.banded = len(self.sizes) <= _BANDS

    def __call__(self, points: Sequence[Sequence[Any]], lane: int) -> tuple[list[int], list[float]]:
        """(lengths, heights) of the shapes of one regime."""
        offset = 0.7 * ((lane + 0.5) / self.lanes - 0.5)
        return [p[2] for p in points], [
            self.sizes.index(p[1]) - offset if self.banded else float(p[1]) for p in points
        ]

    def areas(self, points: Sequence[Sequence[Any]]) -> list[float]:
        """Square points, by visits."""
        return [16 + 184 * p[3] / self.most for p in points]

    def ticks(self, axes: Any) -> None:
        """Batch sizes on the axis."""
        if self.banded:
            axes.set_yticks(range(len(self.sizes)), [str(size) for size in self.sizes])
            axes.set_ylim(-0.5, len(self.sizes) - 0.5)


def _histogram(axes: Any, points: Sequence[Sequence[Any]]) -> None:
    lengths = [p[2] for p in points]
    axes.hist(
        lengths,
        bins=min(60, max(1, len(set(lengths)))),
        weights=[p[1] * p[2] * p[3] for p in points],
        color="#999999",
    )
    axes.set_xlabel("length S (tokens)")
    axes.set_ylabel("tokens")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 4))
