"""The forecast of a check with data: what compiles at which step, the regime map, and what would merge
regimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from cftdiag.report.console import print_line, print_prose, print_table
from cftdiag.report.wording import plural

#: Rows of a list that are shown; the JSON holds all.
MAX_ROWS = 12
REGIMES = "regions of batch B x length S that share one graph"
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
STEP_COLUMNS = ("step", "batch", "length", "seconds", "cause")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A forecast of a data file as rows and lines, for the terminal and the pages."""

    facts: str
    steps: list[list[str]]
    """Cells of :data:`STEP_COLUMNS`, one row for each compile."""
    remarks: list[tuple[str, str]]
    """(text, severity: ``info``, ``warning`` or ``error``) about the compiles as a whole."""
    regimes: list[list[str]]
    """Id, visits, bounds, representative."""
    suggestions: list[str]
    notes: list[str]


def shown(data: Mapping[str, Any]) -> Shown | None:
    """The forecast of a check with data; None for a check of a few given lengths, whose compiles are all
    there is.
    """
    found = data.get("forecast") or {}
    source = found.get("data")
    if not source:
        return None
    remarks = []
    if found.get("warmed"):
        left = len(found["warmed"]["steps"])
        remarks.append(
            (f"with every regime warmed before step 0: {plural(left, 'compile')} left in training", "info")
        )
    if found.get("limit_hit"):
        remarks.append(("the recompile limit is hit: blocks run eager from there on", "error"))
    if found.get("stopped"):
        remarks.append((f"the forecast stopped: {found['stopped']}", "warning"))
    divergence = found.get("divergence") or {}
    if divergence.get("count"):
        text = f"ranks diverge at {plural(divergence['count'], 'step')}: the others wait {divergence['seconds']:.1f} s in all"
        remarks.append((text, "warning"))
    notes = (
        []
        if found.get("exact", True)
        else ["some guards cannot be written over B and S; their shapes were asked one by one"]
    )
    return Shown(
        facts=_facts(source, found),
        steps=[
            [
                str(s["step"]),
                str(s["batch_size"]),
                str(s["length"]),
                f"{s['seconds']:.1f}",
                s["cause"] or "first",
            ]
            for s in found["steps"]
        ],
        remarks=remarks,
        regimes=[
            [
                r["id"],
                f"{r['visits']}x",
                ", ".join([*r["bounds"], *(v for v in r.get("variants", ()) if v)]),
                f"warm with {r['representative']['batch_size']} x {r['representative']['length']}",
            ]
            for r in found["regimes"]
        ],
        suggestions=[_suggestion(suggestion) for suggestion in found.get("suggestions") or ()],
        notes=[*notes, *map(str, found.get("notes") or ())],
    )


def show(console: Console, data: Mapping[str, Any]) -> None:
    """Print the forecast of a data file; nothing for a check of a few given lengths."""
    found = shown(data)
    if found is None:
        return
    print_line(console)
    print_line(console, Text("Forecast", style="bold"))
    print_prose(console, found.facts, indent=2)
    _table(console, found.steps, STEP_COLUMNS)
    for text, severity in found.remarks:
        print_prose(console, text, indent=2, style=_STYLES[severity])
    print_line(console)
    print_line(console, Text("Regimes", style="bold").append(f"  {REGIMES}", style="not bold"))
    _table(console, found.regimes, None)
    for text in found.suggestions:
        print_prose(console, text, indent=2, label="- ", style="green")
    for text in found.notes:
        print_prose(console, text, indent=2, label="- ")


def _facts(source: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    text = f"{source['path']}: {source['samples']} samples, {source['tokens']} tokens, {plural(source['steps'], 'step')}"
    if len(source["ranks"]) > 1:
        text += f" on {len(source['ranks'])} ranks"
    return f"{text}: {plural(found['compiles'], 'compile')}, {found['seconds']:.1f} s on this machine"


def _suggestion(suggestion: Mapping[str, Any]) -> str:
    if suggestion["action"] == "pad":
        doing = f"pad to a multiple of {suggestion['multiple']}"
    else:
        doing = f"pad to buckets of {', '.join(map(str, suggestion['buckets']))}"
    return f"{doing}: {plural(suggestion['graphs'], 'graph')}, {suggestion['extra_tokens']:.1%} more tokens"


def _table(console: Console, rows: list[list[str]], header: tuple[str, ...] | None) -> None:
    right = (0, 1, 2, 3) if header else (1,)
    print_table(console, rows[:MAX_ROWS], header=list(header) if header else None, right=right)
    if len(rows) > MAX_ROWS:
        print_line(console, Text(f"  ... {len(rows) - MAX_ROWS} more (--json has all)", style="dim"))
