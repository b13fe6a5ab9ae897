"""The forecast of a check with data: what compiles at which step, the regime map, and what would merge regimes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from cftdiag.report.console import print_line, print_prose, table_lines
from cftdiag.report.summary import plural

#: Rows of a list that are shown; the JSON holds all.
MAX_ROWS = 12


def show(console: Console, data: Mapping[str, Any]) -> None:
    """Print the forecast of a data file; nothing for a check of a few given lengths, whose compiles are all there is."""
    found = data.get("forecast") or {}
    source = found.get("data")
    if not source:
        return
    print_line(console)
    print_line(console, Text("Forecast", style="bold"))
    print_prose(console, _facts(source, found), indent=2)
    steps = [[str(s["step"]), str(s["batch_size"]), str(s["length"]), f"{s['seconds']:.1f}", s["cause"] or "first"] for s in found["steps"]]
    _table(console, steps, ("step", "batch", "length", "seconds", "cause"))
    if found.get("warmed"):
        left = len(found["warmed"]["steps"])
        print_prose(console, f"with every regime warmed before step 0: {plural(left, 'compile')} left in training", indent=2)
    if found.get("limit_hit"):
        print_prose(console, "the recompile limit is hit: blocks run eager from there on", indent=2, style="bold red")
    if found.get("stopped"):
        print_prose(console, f"the forecast stopped: {found['stopped']}", indent=2, style="yellow")
    divergence = found.get("divergence") or {}
    if divergence.get("count"):
        text = f"ranks diverge at {plural(divergence['count'], 'step')}: the others wait {divergence['seconds']:.1f} s in all"
        print_prose(console, text, indent=2, style="yellow")
    print_line(console)
    print_line(console, Text("Regimes", style="bold").append("  regions of batch B x length S that share one graph", style="not bold"))
    regimes = [
        [
            r["id"],
            f"{r['visits']}x",
            ", ".join([*r["bounds"], *(v for v in r.get("variants", ()) if v)]),
            f"warm with {r['representative']['batch_size']} x {r['representative']['length']}",
        ]
        for r in found["regimes"]
    ]
    _table(console, regimes, None)
    if not found.get("exact", True):
        print_prose(console, "some guards cannot be written over B and S; their shapes were asked one by one", indent=2)
    for suggestion in found.get("suggestions") or ():
        print_prose(console, _suggestion(suggestion), indent=2, label="- ", style="green")
    for note in found.get("notes") or ():
        print_prose(console, str(note), indent=2, label="- ")


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
    for line in table_lines(rows[:MAX_ROWS], header=list(header) if header else None, right=right):
        print_line(console, line)
    if len(rows) > MAX_ROWS:
        print_line(console, Text(f"  ... {len(rows) - MAX_ROWS} more (--json has all)", style="dim"))
