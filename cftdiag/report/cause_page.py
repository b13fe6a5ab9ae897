"""The page of a cause, and the list of causes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from cftdiag.report.console import console_for, print_line, print_prose, print_table


def show_list(
    causes: Sequence[Mapping[str, Any]], *, file: TextIO | None = None, width: int | None = None
) -> None:
    """Print every cause, one a line, by kind."""
    console = console_for(file, width)
    rows = [[str(c["key"]), _kinds(c), str(c.get("title") or "")] for c in causes]
    print_table(console, rows, header=("cause", "kind", "what"), indent=0)
    print_line(console, Text("cftdiag explain CAUSE shows the page of one cause", style="dim"))


def show_page(cause: Mapping[str, Any], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print what a cause is, why it costs, an example, the fix and what it stands on."""
    console = console_for(file, width)
    print_line(console, Text(str(cause["key"]), style="bold").append(f"  {_kinds(cause)}", style="not bold"))
    print_prose(console, str(cause.get("title") or ""))
    for title, key in (("What it is", "what"), ("Why it costs", "why")):
        _section(console, title, cause.get(key))
    if cause.get("example"):
        _title(console, "Example")
        print_line(console, Text(f"    # {cause['seen_by']}", style="dim"))
        _code(console, str(cause["example"]))
    _section(console, "Fix", cause.get("fix"))
    remedies = cause.get("remedies") or ()
    if remedies:
        _title(console, "Remedies, in order of preference")
        for i, remedy in enumerate(remedies, 1):
            # Templates: a finding puts its own names in.
            summary = re.sub(r"\{(\w+)\}", r"<\1>", str(remedy["summary"]))
            print_prose(
                console, f"{summary} [unsafe]" if remedy.get("unsafe") else summary, indent=2, label=f"{i}. "
            )
    references = cause.get("references") or ()
    if references:
        _title(console, "References")
        for reference in references:
            print_line(console, f"  {reference}")


def _kinds(cause: Mapping[str, Any]) -> str:
    kinds = cause.get("kinds") or cause.get("kind") or ()
    return kinds if isinstance(kinds, str) else ", ".join(kinds)


def _title(console: Console, title: str) -> None:
    print_line(console)
    print_line(console, Text(title, style="bold"))


def _section(console: Console, title: str, text: Any) -> None:
    if not text:
        return
    _title(console, title)
    # Every odd piece stands between fences.
    for i, piece in enumerate(re.split(r"^```\w*\n?", str(text).strip(), flags=re.MULTILINE)):
        if i % 2:
            _code(console, piece)
            continue
        for paragraph in filter(None, map(str.strip, piece.split("\n\n"))):
            print_prose(console, " ".join(paragraph.split()), indent=2)


def _code(console: Console, code: str) -> None:
    lines = code.strip("\n").splitlines()
    if not console.is_terminal or console.no_color:
        for line in lines:
            print_line(console, f"    {line}".rstrip())
        return
    from rich.syntax import Syntax

    console.print(Syntax("\n".join(lines), "python", background_color="default", padding=(0, 4)))
