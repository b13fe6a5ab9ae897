"""The report of `cftdiag kernels` in the terminal. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from cftdiag.kernels import rows
from cftdiag.kernels.titles import title
from cftdiag.report.console import console_for, print_line, print_prose, print_table

_RIGHT = range(1, len(rows.HEADER))


def show(
    data: Mapping[str, Any],
    *,
    sources: bool = False,
    code: bool = False,
    file: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print a report of schema ``cftdiag.kernels/1``; ``sources`` adds each kernel's text, ``code`` the
    bytecode.
    """
    console = console_for(file, width)
    _headline(console, data)
    for block in data["blocks"]:
        print_line(console)
        print_line(console, Text(rows.block_title(block), style="bold"))
        if not block["graphs"]:
            print_prose(console, "no graph of its own: it runs the code that another kind compiled", indent=2)
        for graph in block["graphs"]:
            _graph(console, graph, sources)
        for change in block["changes"]:
            print_line(console)
            print_prose(console, rows.change_words(change), indent=2)
    _findings(console, data["findings"])
    if code:
        for frame in data["bytecode"]:
            _frame(console, frame)
    print_line(console)
    for line in data["assumptions"]:
        print_prose(console, line, indent=2, label="- ", style="dim")


def _headline(console: Console, data: Mapping[str, Any]) -> None:
    device, facts = rows.headline(data)
    print_line(console, Text(data["model"], style="bold").append(f"  {device}", style="not bold"))
    print_prose(console, facts, indent=2)


def _graph(console: Console, graph: Mapping[str, Any], sources: bool) -> None:
    print_line(console)
    print_line(
        console,
        Text(f"  {graph['direction']} {graph['compile_id']}", style="bold").append(
            f"  {rows.sizes(graph)}", style="not bold dim"
        ),
    )
    kernels = rows.launched(graph["kernels"])
    print_table(
        console,
        [rows.row(kernel, times, graph["direction"]) for kernel, times in kernels],
        header=rows.HEADER,
        right=_RIGHT,
        indent=4,
    )
    calls = [rows.library_call(extern) for extern in graph["externs"]]
    if calls:
        print_line(console)
        print_table(console, calls, header=rows.CALL_HEADER, right=range(1, 6), indent=4)
    print_line(console)
    for kernel, _ in kernels:
        print_line(
            console,
            Text("    ")
            .append(title(kernel, graph["direction"]), style="cyan")
            .append(f"  {kernel['name']}")
            .append(f"  {rows.places(kernel['lines'], 4)}", style="dim"),
        )
        print_prose(console, ", ".join(kernel["aten"]), indent=6, style="dim")
        if sources and kernel["source"]:
            _text(console, kernel["source"], "cpp" if kernel["category"] == "cpp" else "python")


def _findings(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    if not findings:
        return
    print_line(console)
    print_line(console, Text("Findings from the code", style="bold"))
    for finding in findings:
        where = finding["where"]
        place = f"{Path(where['file']).name}:{where['line']}" if where["file"] else ""
        print_line(
            console,
            Text("  ").append(finding["severity"], style="cyan").append(f"  {finding['cause']}  {place}"),
        )
        for evidence in finding["evidence"]:
            print_prose(console, evidence, indent=4)
        for remedy in finding["remedies"][:1]:
            print_prose(console, remedy["summary"], indent=4, label="fix   ", style="green")
        print_prose(console, f"cftdiag explain {finding['cause']}", indent=4, label="more  ")


def _frame(console: Console, frame: Mapping[str, Any]) -> None:
    print_line(console)
    print_line(
        console,
        Text(
            f"bytecode of {frame['function']}  {frame['file']}:{frame['line']}  ({frame['by']})", style="bold"
        ),
    )
    _text(console, frame["text"], "python" if frame["by"] == "depyf" else "text")


def _text(console: Console, text: str, language: str) -> None:
    """Highlighted on a terminal, line for line elsewhere; never cut to the width."""
    if console.is_terminal:
        console.print(Syntax(text.strip(), language, theme="ansi_light", word_wrap=True))
        return
    for line in text.strip().splitlines():
        print_line(console, Text(line))
