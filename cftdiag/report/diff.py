"""A diff in the terminal and as Markdown: what is worse first, then what is better, then the rest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.text import Text

from cftdiag.compare import Change, Diff
from cftdiag.compare.change import Figure
from cftdiag.report import advice, wording
from cftdiag.report.console import console_for, print_line, print_prose, table_lines
from cftdiag.report.markdown import code, plain_text, table

#: Changes of one section that are shown; the JSON holds all.
MAX_ROWS = 30
#: Characters of a value beside its change.
_VALUE = 100

_TITLES = {"conditions": "Asked for", "environment": "Environment", "undetermined": "Undetermined"}
#: Sections of things that come and go; elsewhere None is a value.
_THINGS = ("compiles", "forecast", "regimes", "blocks", "kernels", "undetermined")
_STYLES = {"worse": "red", "better": "green", "other": ""}


def show(found: Diff, *, quiet: bool = False, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a diff to ``file`` (default stdout); ``quiet`` prints the last line alone."""
    console = console_for(file, width)
    if not quiet:
        for label, side in (("before", found.before), ("after", found.after)):
            print_line(console, Text(f"{label:<8}", style="dim").append(about(side)))
        for section, changes in _sections(found):
            print_line(console)
            print_line(console, Text(_TITLES.get(section, section.capitalize()), style="bold"))
            rows: list[list[str | Text]] = [
                [Text(mark(c), style=_STYLES[c.effect]), _what(c), values(c)] for c in changes
            ]
            for change, line in zip(changes[:MAX_ROWS], table_lines(rows[:MAX_ROWS]), strict=True):
                print_line(console, line)
                for label, text in details(change):
                    print_prose(console, text, indent=8, label=f"{label:<7}")
            if len(rows) > MAX_ROWS:
                print_line(console, Text(f"  ... {len(rows) - MAX_ROWS} more (--json has all)", style="dim"))
        if found.figures:
            print_line(console)
            print_line(
                console, Text("Of the machines", style="bold").append("  not judged", style="not bold")
            )
            for line in table_lines([[f.name, figure(f)] for f in found.figures]):
                print_line(console, line)
        print_line(console)
    worse = found.worse("warning")
    style = "bold red" if found.worse("error") else "bold yellow" if worse else "bold green"
    print_line(console, Text(summary(found), style=style))


def render(found: Diff) -> str:
    """The same as Markdown, for a pull request or a job's summary."""
    parts = [
        "# cftdiag diff",
        f"**{plain_text(summary(found))}**",
        "\n".join(
            f"- {label}: {plain_text(about(side))}"
            for label, side in (("before", found.before), ("after", found.after))
        ),
    ]
    for section, changes in _sections(found):
        parts.append(f"## {_TITLES.get(section, section.capitalize())}")
        rows = [[mark(c), plain_text(_what(c)), _cell(c)] for c in changes[:MAX_ROWS]]
        parts.append(table(("change", "what", "before -> after"), rows))
        if len(changes) > MAX_ROWS:
            parts.append(f"... {len(changes) - MAX_ROWS} more")
        told = [
            f"- {label.strip()}: {code(text) if label in ('where', 'guard') else plain_text(text)}"
            for change in changes[:MAX_ROWS]
            for label, text in details(change)
        ]
        if told:
            parts.append("\n".join(told))
    if found.figures:
        rows = [[f.name, plain_text(figure(f))] for f in found.figures]
        parts += ["## Of the machines, not judged", table(("figure", "before -> after"), rows)]
    return "\n\n".join(parts) + "\n"


def summary(found: Diff) -> str:
    """``2 regressions (1 error, 1 warning), 1 improvement, 3 other changes``; one line for nothing."""
    if not found.changes:
        return "no change"
    worse = found.worse()
    counts = wording.severity_counts([{"severity": c.severity} for c in worse])
    weights = ", ".join(wording.plural(n, s) if s != "info" else f"{n} info" for s, n in counts.items() if n)
    better = sum(c.effect == "better" for c in found.changes)
    other = sum(c.effect == "other" for c in found.changes)
    parts = [
        f"{wording.plural(len(worse), 'regression')} ({weights})" if worse else "no regression",
        wording.plural(better, "improvement") if better else "",
        wording.plural(other, "other change") if other else "",
    ]
    return ", ".join(part for part in parts if part)


def about(side: Mapping[str, Any]) -> str:
    """``check of Qwen3-4B, viable (torch 2.13.0)``."""
    versions = [
        f"{name} {side['environment'][name]}"
        for name in ("torch", "transformers")
        if side["environment"].get(name)
    ]
    verdict = f", {str(side['verdict']).replace('_', ' ')}" if side.get("verdict") else ""
    return f"{side['kind']} of {side['name']}{verdict}" + (f" ({', '.join(versions)})" if versions else "")


def mark(change: Change) -> str:
    """``worse error``, ``better``, ``new``, ``gone``, ``changed``."""
    if change.effect == "worse":
        return "worse" if change.severity == "info" else f"worse {change.severity}"
    if change.effect == "better":
        return "better"
    return "new" if change.before is None else "gone" if change.after is None else "changed"


def _what(change: Change) -> str:
    blocks = wording.fold_names(change.blocks)
    return " ".join(part for part in (change.what, blocks, change.field) if part)


def values(change: Change) -> str:
    """``1 -> 4``; ``new`` or ``gone`` where one side is missing."""
    if change.section == "findings" and not change.field:
        return "new" if change.before is None else "gone"
    if change.section in _THINGS and None in (change.before, change.after):
        word, value = ("new", change.after) if change.before is None else ("gone", change.before)
        return f"{word}: {_value(value, change)}"
    return f"{_value(change.before, change)} -> {_value(change.after, change)}"


def _value(value: Any, change: Change) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and "bytes" in change.field:
        return f"{value:,.0f}"
    if change.field == "blocks":
        return wording.fold_names(value)
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return ",".join(map(str, value)) or "none"
    if change.field == "where" and isinstance(value, Mapping):
        return wording.where({"where": value}) or "unknown"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    line = " ".join(str(text).split())
    return line if len(line) <= _VALUE else f"{line[: _VALUE - 3]}..."


def _cell(change: Change) -> str:
    return plain_text(values(change))


def details(change: Change) -> list[tuple[str, str]]:
    """(label, text) below a finding that is new or gone."""
    finding = change.after or change.before
    if change.section != "findings" or change.field or not isinstance(finding, Mapping):
        return []
    rows = [("where", wording.where(finding) or "")]
    if change.before is None:
        rows += [("why", str(finding.get("explanation") or "")), ("guard", str(finding.get("guard") or ""))]
        remedy = wording.best_remedy(finding)
        if remedy is not None:
            rows.append(("fix", f"{remedy.get('summary')} [{advice.mark(remedy, str(finding.get('kind')))}]"))
    return [(label, text) for label, text in rows if text]


def figure(number: Figure) -> str:
    """``5.2 -> 9.1 s``."""
    a, b = ("unknown" if v is None else f"{v:.3g}" for v in (number.before, number.after))
    return f"{a} -> {b} {number.unit}"


def _sections(found: Diff) -> list[tuple[str, Sequence[Change]]]:
    return [
        (section, list(group)) for section, group in itertools.groupby(found.changes, lambda c: c.section)
    ]
