"""Figures of a forecast: the regime map over batch size and length, and when the run compiles."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from cftdiag.escape import escaped

#: Colours that stay apart for most kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
#: Forms, for those who see no colours.
_MARKERS = ("o", "s", "^", "D", "v", "P", "p", "h")
_EAGER = "#000000"
#: Batch sizes up to which each has a band of its own.
_BANDS = 12
#: Regimes that the legend writes out.
_NAMED = 12


def regime_figure(forecast: Mapping[str, Any]) -> Any:
    """The map of ``CheckReport.forecast`` as a matplotlib figure.

    Above: each shape of the data at (length, batch size), its colour and form by its regime, its size by visits, on
    the areas in which each regime's bounds hold; representatives marked. Below: tokens forwarded by length.
    Raises ``ValueError`` for a forecast without a regime map.
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
    _areas(upper, regimes, place)
    for i, regime in enumerate(regimes):
        own = [p for p in points if p[0] == regime["id"]]
        upper.scatter(
            *place(own),
            s=place.areas(own),
            color=_COLOURS[i % len(_COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            label=_label(regime, shared) if i < _NAMED else None,
            edgecolors="white",
            linewidths=0.6,
            zorder=2,
        )
    eager = [p for p in points if p[0] is None]
    if eager:
        upper.scatter(
            *place(eager),
            s=place.areas(eager),
            color=_EAGER,
            marker="x",
            label="no graph: eager or not foreseen",
            zorder=2,
        )
    for i, regime in enumerate(regimes):
        shown = regime["representative"]
        where = place([[regime["id"], shown["batch_size"], shown["length"], 1]])
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
    variants = [v for v in regime.get("variants", ()) if v]
    text = (
        f"{regime['id']}: {bounds}"
        + (f" ({', '.join(variants)})" if variants else "")
        + f" - {regime['visits']:,}x"
    )
    # long bounds go on in a second line: cut, they would not tell regimes apart
    return "\n".join(textwrap.wrap(escaped(text), 64)).replace("$", r"\$")  # no mathematics to Matplotlib


def _areas(axes: Any, regimes: Sequence[Mapping[str, Any]], place: _Places) -> None:
    """Shade where each regime is the only one whose bounds hold. Bounds on remainders make stripes too fine to
    draw: regimes that only these part stay unshaded.
    """
    from cftdiag.forecast.bounds import read

    try:
        conditions = [read([b for b in r["bounds"] if "%" not in b]) for r in regimes]
    except (ValueError, TypeError):
        return  # a text that is no condition: the shapes tell what there is
    lengths = np.unique(np.linspace(1, place.longest * 1.05 + 1, 800).astype(int))
    for size, low, height in place.rows():
        held = np.array([np.broadcast_to(c.holds(size, lengths), lengths.shape) for c in conditions])
        # the first regime whose bounds hold, where they differ from those of all others
        alone = held.sum(axis=0) == 1
        which = np.where(alone, held.argmax(axis=0), -1)
        starts = np.flatnonzero(np.diff(which, prepend=-2))
        for start, end in zip(starts, [*starts[1:], len(which)], strict=True):
            if which[start] >= 0:
                last = lengths[min(end, len(lengths) - 1)]
                axes.broken_barh(
                    [(lengths[start], last - lengths[start])],
                    (low, height),
                    color=_COLOURS[which[start] % len(_COLOURS)],
                    alpha=0.18,
                    linewidth=0,
                    zorder=0,
                )


class _Places:
    """Where shapes are drawn: few batch sizes are bands. Shapes of one size and length in several regimes, which
    differ in more than their shape, stand above one another.
    """

    def __init__(self, points: Sequence[Sequence[Any]], regimes: Sequence[Mapping[str, Any]]) -> None:
        self.sizes = sorted({p[1] for p in points} | {r["representative"]["batch_size"] for r in regimes})
        self.most = max(p[3] for p in points)
        self.longest = max(p[2] for p in points)
        self.banded = len(self.sizes) <= _BANDS
        self._sharing: dict[tuple[int, int], list[Any]] = {}
        for p in points:
            self._sharing.setdefault((p[1], p[2]), []).append(p[0])

    def __call__(self, points: Sequence[Sequence[Any]]) -> tuple[list[int], list[float]]:
        """(lengths, heights) of shapes."""
        return [p[2] for p in points], [self._height(p) for p in points]

    def _height(self, point: Sequence[Any]) -> float:
        base = self.sizes.index(point[1]) if self.banded else float(point[1])
        sharing = self._sharing.get((point[1], point[2]), [])
        if len(sharing) < 2 or point[0] not in sharing or not self.banded:
            return base
        return base + 0.5 * ((sharing.index(point[0]) + 0.5) / len(sharing) - 0.5)

    def rows(self) -> list[tuple[int, float, float]]:
        """(batch size, lower edge, height) of the rows that areas are drawn in."""
        if self.banded:
            return [(size, i - 0.45, 0.9) for i, size in enumerate(self.sizes)]
        sizes = np.unique(np.linspace(self.sizes[0], self.sizes[-1], 60).astype(int))
        heights = np.diff(sizes, append=sizes[-1] + 1)
        return [(int(s), float(s) - 0.5, float(h)) for s, h in zip(sizes, heights, strict=True)]

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
