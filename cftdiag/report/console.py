"""Where text is printed: colours on a terminal, plain text elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from cftdiag.report.stream import reader_gone

#: Width of prose that goes to a pipe or a file.
PIPED_WIDTH = 120


class _Console(Console):
    """Rich ends the process with exit code 1 when the reader has gone, which would read as findings."""

    def on_broken_pipe(self) -> None:
        reader_gone(self.file)  # type: ignore[arg-type]


def console_for(file: TextIO | None = None, width: int | None = None) -> Console:
    """A console on ``file`` (default stdout) without colours unless it is a terminal and NO_COLOR is unset."""
    file = file or sys.stdout
    tty = file.isatty()
    if not tty and width is None:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) >= 40 else PIPED_WIDTH
    return _Console(
        file=file,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        no_color=None if tty else True,
        force_terminal=tty,
        force_jupyter=False,  # else each line in a notebook becomes a cell output of its own, and ``file`` gets nothing
    )


def table_lines(
    rows: Iterable[Sequence[str | Text]],
    header: Sequence[str] | None = None,
    right: Iterable[int] = (),
    indent: int = 2,
) -> list[Text]:
    """Rows as aligned lines, two spaces between columns, ``right`` naming the columns aligned to the right.

    Lines are as long as they need to be: a name or a path cut short is of no use in a log, and a terminal
    folds it.
    """
    cells = [[cell.copy() if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if header is not None:
        cells.insert(0, [Text(title, style="dim") for title in header])
    count = max((len(row) for row in cells), default=0)
    widths = [max((row[i].cell_len for row in cells if i < len(row)), default=0) for i in range(count)]
    rights = set(right)
    lines = []
    for row in cells:
        line = Text(" " * indent)
        for i, cell in enumerate(row):
            cell.align("right" if i in rights else "left", widths[i])
            if i:
                line.append("  ")
            line.append_text(cell)
        line.rstrip()
        lines.append(line)
    return lines


def print_line(console: Console, line: Text | str = "") -> None:
    """Print one line as it is, never folded or cut by us."""
    console.print(line, soft_wrap=True)


def print_prose(
    console: Console, text: str | Text, indent: int = 0, label: str = "", style: str = ""
) -> None:
    """Print text folded to the console's width, under a label in the margin (``  why   ...``)."""
    body = text if isinstance(text, Text) else Text(text, style=style)
    width = max(console.width - indent - len(label), 20)
    for i, line in enumerate(body.wrap(console, width, overflow="fold")):
        line.rstrip()
        margin = (
            Text(" " * indent).append(label, style="dim") if i == 0 else Text(" " * (indent + len(label)))
        )
        console.print(margin.append_text(line), soft_wrap=True)
