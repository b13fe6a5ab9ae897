"""A check as Markdown, for a pull request, an issue or a job's summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cftdiag.escape import escaped
from cftdiag.report import accepted, advice, forecast, payoff, wording

#: Rows of the table of compiles; the JSON holds all.
MAX_COMPILES = 16


def render(data: Mapping[str, Any]) -> str:
    """The whole page."""
    name, facts = wording.headline(data)
    notes = [*wording.conditions(data), *wording.passes_not_run(data)]
    parts = [
        f"# cftdiag check: {plain_text(name)}",
        f"**{plain_text(wording.verdict_line(data))}**",
        plain_text(facts),
        _list(notes),
    ]
    parts += [*_change_first(data), *_blocks(data), *_compiles(data), *_forecast(data)]
    parts += [*_payoff(data), *_findings(data)]
    parts += _undetermined(data)
    return "\n\n".join(part for part in parts if part) + "\n"


def _blocks(data: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            str(g.count),
            code(g.cls),
            code(g.names),
            wording.cell(g.graphs),
            wording.yes_no(g.fullgraph),
            str(g.graph_breaks),
            str(g.recompiles),
        ]
        for g in wording.block_groups(data["blocks"])
    ]
    header = ("count", "class", "blocks", "graphs", "fullgraph", "graph breaks", "recompiles")
    return ["## Blocks", table(header, rows)] if rows else []


def _compiles(data: Mapping[str, Any]) -> list[str]:
    compiles = data["compiles"]
    if not compiles:
        return []
    rows = [[plain_text(text) for text in wording.compile_row(c)] for c in compiles[:MAX_COMPILES]]
    return ["## Compiles", _cut(table(list(wording.COMPILE_COLUMNS), rows), len(compiles))]


def _forecast(data: Mapping[str, Any]) -> list[str]:
    found = forecast.shown(data)
    if found is None:
        return []
    parts = ["## Forecast", plain_text(found.facts)]
    if found.steps:
        parts.append(
            _cut(
                table(
                    forecast.STEP_COLUMNS,
                    [[plain_text(c) for c in row] for row in found.steps[:MAX_COMPILES]],
                ),
                len(found.steps),
            )
        )
    parts.append(_list(text for text, _ in found.remarks))
    parts += ["## Regimes", f"{forecast.REGIMES[0].upper()}{forecast.REGIMES[1:]}."]
    rows = [
        [plain_text(i), visits, code(bounds) if bounds else "any", plain_text(warm)]
        for i, visits, bounds, warm in found.regimes[:MAX_COMPILES]
    ]
    parts.append(_cut(table(("regime", "visits", "bounds", "warm"), rows), len(found.regimes)))
    return [*parts, _list([*found.suggestions, *found.notes])]


def _payoff(data: Mapping[str, Any]) -> list[str]:
    found = data.get("payoff")
    if not found:
        return []

    def plain(rows: Sequence[Sequence[str]]) -> list[list[str]]:
        return [[plain_text(cell) for cell in row] for row in rows]

    parts = ["## Gain and memory", f"{plain_text(payoff.title(found))}."]
    if scopes := payoff.scope_rows(found):
        parts.append(table(payoff.SCOPES, plain(scopes)))
    if shapes := payoff.shape_rows(found):
        parts.append(table(payoff.shape_columns(found), plain(shapes)))
    return [*parts, _list(payoff.sentences(found))]


def _cut(table: str, rows: int) -> str:
    """A table of the first :data:`MAX_COMPILES` rows, and how many were left out."""
    return table if rows <= MAX_COMPILES else f"{table}\n\n... {rows - MAX_COMPILES} more"


def _findings(data: Mapping[str, Any]) -> list[str]:
    new, known = accepted.new_findings(data), accepted.accepted_lines(data)
    parts = ["## Findings"] if new else []
    for finding in new:
        parts.append(f"### {finding.get('severity')}: {finding.get('kind')} {code(finding.get('cause'))}")
        facts = [plain_text(wording.reach(finding))]
        place = wording.where(finding)
        if place:
            facts.append(f"where: {code(place)}")
        if finding.get("guard"):
            facts.append(f"guard: {code(finding['guard'])}")
        parts += [plain_text(str(finding.get("explanation") or "")), _list(facts, escape=False)]
        remedies = finding.get("remedies") or []
        if remedies:
            parts.append("What to do:")
            parts.append(
                "\n".join(
                    f"{i}. {plain_text(str(r.get('summary')))} ({plain_text(advice.mark(r, str(finding.get('kind'))))})"
                    for i, r in enumerate(remedies, 1)
                )
            )
    if known:
        parts += ["## Accepted", _list(known)]
    notes = accepted.gate_notes(data)
    if notes:
        parts.append(_list(notes))
    return parts


def _change_first(data: Mapping[str, Any]) -> list[str]:
    rows = advice.advice(data)
    if not rows:
        return []
    parts = []
    for i, row in enumerate(rows, 1):
        line = f"{i}. {code(row.text) if row.is_code else plain_text(row.text)} ({plain_text(row.mark)})"
        if row.where:
            line += f" at {code(row.where)}"
        if row.diff:
            fence = "`" * (2 + max(3, *(line.count("`") for line in row.diff)))
            line += "\n\n" + "\n".join(f"   {text}" for text in (f"{fence}diff", *row.diff, fence))
        parts.append(line)
    return ["## Change first", "\n".join(parts)]


def _undetermined(data: Mapping[str, Any]) -> list[str]:
    return ["## Undetermined", _list(map(str, data["undetermined"]))] if data["undetermined"] else []


def _list(lines: Iterable[str], *, escape: bool = True) -> str:
    return "\n".join(f"- {plain_text(line) if escape else line}" for line in lines if line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: Any) -> str:
    """A code span on one line; a pipe is escaped for tables, a backtick widens the fence."""
    line = escaped(" ".join(str(text).split())).replace("|", "\\|")
    fence = "``" if "`" in line else "`"
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def plain_text(text: str) -> str:
    """One line without meaning for Markdown: names such as ``__init__``, ``x | y`` and ``[x](y)`` stay as they are."""
    line = escaped(" ".join(text.split()))
    for mark in ("\\", "*", "_", "`", "<", "|", "[", "]", "~", "#"):
        line = line.replace(mark, f"\\{mark}")
    return line
