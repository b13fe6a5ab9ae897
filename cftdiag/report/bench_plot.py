"""Figures of a comparison of arms: step times, and the time saved against the time compiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cftdiag.escape import escaped

#: Colours that stay apart for most kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def figure(data: Mapping[str, Any]) -> Any:
    """``cftdiag.bench/1`` as a matplotlib figure. Left: seconds of each step by arm, steps that compiled as open
    circles. Right: seconds that an arm is ahead of eager after so many steps, its compiling counted, with the
    band of its interval. Raises ``ValueError`` where no step was measured.
    """
    arms = [arm for arm in data["arms"] if arm["step_seconds"] is not None]
    if not arms:
        raise ValueError("no step was measured, so there is nothing to draw")
    from matplotlib.figure import Figure

    made = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = made.subplots(1, 2)
    for i, arm in enumerate(arms):
        colour = _COLOURS[i % len(_COLOURS)]
        timed = [s for s in arm["samples"] if s["seconds"] is not None]
        for compiled, face in ((False, colour), (True, "none")):
            own = [s for s in timed if s["compiled"] == compiled]
            left.scatter(
                [s["step"] + 0.15 * i for s in own],
                [s["seconds"] for s in own],
                facecolors=face,
                edgecolors=colour,
                s=18,
                label=None if compiled else _name(arm),
            )
        _ahead(right, arm, colour)
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_ylabel("seconds (open: something was compiled)")
    left.legend(fontsize="small", frameon=False)
    right.axhline(0, color="#999999", linewidth=0.8)
    right.set_xlabel("steps")
    right.set_ylabel("seconds ahead of eager, compiling counted")
    made.suptitle(escaped(str(data["subject"]))[:100].replace("$", r"\$"), fontsize="medium")
    return made


def _name(arm: Mapping[str, Any]) -> str:
    return escaped(str(arm["arm"])).replace("$", r"\$")


def _ahead(axes: Any, arm: Mapping[str, Any], colour: str) -> None:
    against = arm["against_eager"]
    if against is None or arm["compile_seconds_cold"] is None:
        return
    pays = against["break_even_cold"] or {}
    longest = max(
        [1000, *(2 * n for n in (pays.get("median"), pays.get("low")) if n is not None and n < 10**6)]
    )
    steps = np.linspace(0, longest, 50)
    saved, cost = against["saved_seconds"], arm["compile_seconds_cold"]
    axes.plot(steps, steps * saved["median"] - cost, color=colour, label=_name(arm))
    if saved["low"] is not None:
        axes.fill_between(
            steps,
            steps * saved["low"] - cost,
            steps * saved["high"] - cost,
            color=colour,
            alpha=0.18,
            linewidth=0,
        )


def save(data: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``bench.png`` and ``bench.svg`` into ``folder``; nothing where no step was measured."""
    try:
        made = figure(data)
    except ValueError:
        return []
    paths = [Path(folder) / f"bench.{kind}" for kind in ("png", "svg")]
    for path in paths:
        made.savefig(path, dpi=150)
    return paths
