"""A check in the terminal: headline, blocks, compiles, findings, what stayed undetermined, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from cftdiag.report import accepted, advice, forecast, payoff, wording
from cftdiag.report.console import console_for, print_line, print_prose, print_table

#: Rows of a list that are shown; the JSON holds all.
MAX_COMPILES = 16
MAX_UNDETERMINED = 6

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_VERDICT_STYLES = {
    "viable": "bold green",
    "viable_with_recompiles": "bold yellow",
    "not_viable": "bold red",
    "error": "bold red",
}


def show(
    data: Mapping[str, Any], *, quiet: bool = False, file: TextIO | None = None, width: int | None = None
) -> None:
    """Print a check to ``file`` (default stdout); ``quiet`` prints the verdict line alone."""
    console = console_for(file, width)
    if not quiet:
        _headline(console, data)
        _blocks(console, data)
        _compiles(console, data)
        forecast.show(console, data)
        payoff.show(console, data)
        _findings(console, data)
        _undetermined(console, data)
        print_line(console)
        for note in wording.passes_not_run(data):
            print_prose(console, note, style="dim")
        for note in accepted.gate_notes(data):
            print_prose(console, note, style="yellow")
    print_line(console, Text(wording.verdict_line(data), style=_VERDICT_STYLES.get(data["verdict"], "bold")))
    gate = accepted.gate_line(data)
    if gate is not None:
        print_line(console, Text(gate, style="bold"))
    if not quiet:
        change_first(console, data)


def _title(console: Console, text: str) -> None:
    print_line(console)
    print_line(console, Text(text, style="bold"))


def _headline(console: Console, data: Mapping[str, Any]) -> None:
    name, facts = wording.headline(data)
    print_line(
        console,
        Text(name, style="bold").append(f"  {facts}", style="not bold")
        if facts
        else Text(name, style="bold"),
    )
    for line in wording.conditions(data):
        print_prose(console, line, indent=2)


def _blocks(console: Console, data: Mapping[str, Any]) -> None:
    groups = wording.block_groups(data["blocks"])
    if not groups:
        return
    _title(console, "Blocks")
    rows: list[list[str | Text]] = []
    for group in groups:
        facts = group.facts()
        style = "yellow" if group.trouble else "green"
        rows.append(
            [
                f"{group.count} x {group.cls}",
                group.names,
                *(Text(fact, style=style if i else "") for i, fact in enumerate(facts)),
            ]
        )
    print_table(console, rows)


def _compiles(console: Console, data: Mapping[str, Any]) -> None:
    compiles = data["compiles"]
    if not compiles:
        return
    _title(console, "Compiles")
    rows = [wording.compile_row(c) for c in compiles]
    print_table(console, rows[:MAX_COMPILES], header=list(wording.COMPILE_COLUMNS), right=(2, 3, 4))
    _more(console, len(rows) - MAX_COMPILES)


def _findings(console: Console, data: Mapping[str, Any]) -> None:
    new, known = accepted.new_findings(data), accepted.accepted_lines(data)
    if new:
        _title(console, "Findings")
    for i, finding in enumerate(new):
        if i:
            print_line(console)
        _finding(console, finding)
    if known:
        _title(console, "Accepted")
    for text in known:
        print_line(console, Text(f"  {text}"))


def _finding(console: Console, finding: Mapping[str, Any]) -> None:
    severity = str(finding.get("severity"))
    line = Text("  ").append(severity, style=_STYLES.get(severity, "")).append(f"  {finding.get('kind')}  ")
    line.append(str(finding.get("cause")), style="bold").append(f"  {wording.reach(finding)}")
    print_line(console, line)
    place = wording.where(finding)
    if place:
        print_line(console, Text("    ").append("where  ", style="dim").append(place))
    if finding.get("explanation"):
        print_prose(console, str(finding["explanation"]), indent=4, label="why    ")
    if finding.get("guard"):
        print_line(
            console,
            Text("    ").append("guard  ", style="dim").append(" ".join(str(finding["guard"]).split())),
        )
    remedy = wording.best_remedy(finding)
    if remedy is not None:
        _remedy(console, finding, remedy, "fix    ")
    shown = advice.also_shown(finding)
    for other in shown:
        _remedy(console, finding, other, "or     ")
    others = len(finding.get("remedies") or []) - (remedy is not None) - len(shown)
    more = f"{wording.plural(others, 'other remedy').replace('remedys', 'remedies')}: " if others > 0 else ""
    print_line(
        console,
        Text("    ").append("more   ", style="dim").append(f"{more}cftdiag explain {finding.get('cause')}"),
    )


def _remedy(console: Console, finding: Mapping[str, Any], remedy: Mapping[str, Any], label: str) -> None:
    """A remedy with what is known of it, and the edit where there is one."""
    known = advice.mark(remedy, str(finding.get("kind")))
    style = "" if remedy.get("verified") is False else "green"
    print_prose(console, f"{remedy.get('summary')} [{known}]", indent=4, label=label, style=style)
    edit = advice.edit_of(remedy)
    if edit:
        print_line(
            console,
            Text("    ").append("edit   ", style="dim").append(edit),
        )


def change_first(console: Console, data: Mapping[str, Any]) -> None:
    """Print the edits to make, the best first; nothing where there are none."""
    rows = advice.advice(data)
    if not rows:
        return
    together = len(data.get("change_first") or ())
    _title(console, "Change first" + (" (proved together)" if together > 1 else ""))
    for i, row in enumerate(rows[: advice.MOST], 1):
        label = f"{i}. "
        print_prose(
            console, f"{row.text} [{row.mark}]", indent=2, label=label, style="green" if row.proved else ""
        )
        if row.where:
            print_line(console, Text(" " * (2 + len(label))).append("at  ", style="dim").append(row.where))
        for line in row.diff:
            style = {"-": "red", "+": "green"}.get(line[:1], "dim")
            print_line(console, Text(" " * (2 + len(label))).append(line, style=style))
    if len(rows) > advice.MOST:
        print_line(console, Text(f"  ... {len(rows) - advice.MOST} more under Findings", style="dim"))
    if any(row.diff for row in rows):
        print_line(console, Text(f"  {advice.patch_hint(data)}", style="dim"))


def _undetermined(console: Console, data: Mapping[str, Any]) -> None:
    notes = data["undetermined"]
    if not notes:
        return
    _title(console, "Undetermined")
    for note in notes[:MAX_UNDETERMINED]:
        print_prose(console, str(note), indent=2, label="- ")
    _more(console, len(notes) - MAX_UNDETERMINED)


def _more(console: Console, left: int) -> None:
    if left > 0:
        print_line(console, Text(f"  ... {left} more (--json has all)", style="dim"))
