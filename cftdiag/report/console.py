"""Where text is printed: colours on a terminal, plain text elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from cftdiag.escape import STEERING, escaped
from cftdiag.report.stream import reader_gone

#: Width of prose that goes to a pipe or a file.
PIPED_WIDTH = 120


class _Console(Console):
    """Rich ends the process with exit code 1 when the reader has gone, which would read as findings."""

    def on_broken_pipe(self) -> None:
        reader_gone(self.file)  # type: ignore[arg-type]


def console_for(file: TextIO | None = None, width: int | None = None) -> Console:
    """A console on ``file`` (default stdout) without colours or bold unless it is a terminal and NO_COLOR is unset."""
    file = file or sys.stdout
    tty = file.isatty()
    if not tty and width is None:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) >= 40 else PIPED_WIDTH
    plain = not tty or bool(os.environ.get("NO_COLOR"))
    return _Console(
        file=file,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        no_color=True if plain else None,
        # no_color alone leaves bold and dim on a terminal
        color_system=None if plain else "auto",
        force_terminal=tty,
        force_jupyter=False,  # else each line in a notebook becomes a cell output of its own, and ``file`` gets nothing
    )


def table_lines(
    rows: Iterable[Sequence[str | Text]],
    header: Sequence[str] | None = None,
    right: Iterable[int] = (),
    indent: int = 2,
    width: int | None = None,
) -> list[Text]:
    """Rows as aligned lines, two spaces between columns, ``right`` naming the columns aligned to the right.

    Lines are as long as they need to be: a name or a path cut short is of no use in a log. With a ``width`` the
    widest columns of text are folded into cells of several lines until a row fits, as far as it can.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if header is not None:
        cells.insert(0, [Text(title, style="dim") for title in header])
    count = max((len(row) for row in cells), default=0)
    widths = [max((row[i].cell_len for row in cells if i < len(row)), default=0) for i in range(count)]
    rights = set(right)
    if width is not None:
        widths = _fitted(widths, width - indent - 2 * (count - 1), rights)
    lines = []
    for row in cells:
        folded = [_fold(cell, widths[i]) for i, cell in enumerate(row)]
        for number in range(max(map(len, folded), default=1)):
            line = Text(" " * indent)
            for i, pieces in enumerate(folded):
                piece = pieces[number] if number < len(pieces) else Text("")
                piece.align("right" if i in rights else "left", widths[i])
                if i:
                    line.append("  ")
                line.append_text(piece)
            line.rstrip()
            lines.append(line)
    return lines


#: Columns of text are folded to this many cells at least: below, a name is a column of letters.
_NARROWEST = 10


def _fitted(widths: list[int], room: int, rights: set[int]) -> list[int]:
    """The widths with the widest columns of text narrowed until all fit into ``room``, or can be narrowed no more."""
    widths = list(widths)
    while (over := sum(widths) - room) > 0:
        text = sorted((i for i in range(len(widths)) if i not in rights), key=lambda i: -widths[i])
        if not text or widths[text[0]] <= _NARROWEST:
            break
        next_widest = widths[text[1]] if len(text) > 1 else _NARROWEST
        widths[text[0]] = max(widths[text[0]] - over, min(next_widest, widths[text[0]] - 1), _NARROWEST)
    return widths


def _fold(cell: Text, width: int) -> list[Text]:
    """A cell as lines of ``width``: between words, and inside one that is longer behind its dots, commas, slashes and
    underscores where there are some.
    """
    if cell.cell_len <= width:
        return [cell]
    pieces: list[Text] = [Text("")]
    for part in cell.split(" ", include_separator=True):
        for word in (
            part.divide([m.end() for m in _BREAKS.finditer(part.plain)]) if part.cell_len > width else [part]
        ):
            for end in range(0, max(word.cell_len, 1), max(width, 1)):
                bit = word[end : end + width] if word.cell_len > width else word
                if pieces[-1].cell_len + len(bit.plain.rstrip()) > width:
                    pieces.append(Text(""))
                pieces[-1].append_text(bit)
                if word.cell_len <= width:
                    break
    for piece in pieces:
        piece.rstrip()
    return pieces


_BREAKS = re.compile(r"[._,/:=~-]")


def visible(text: Text | str) -> Text:
    """The text with what would steer a terminal shown instead: control characters and lone surrogates as
    ``\\x1b``, marks that turn the direction of writing as ``\\u202e``. A copy.
    """
    shown = text.copy() if isinstance(text, Text) else Text(text)
    if not STEERING.search(shown.plain):
        return shown
    parts = []
    for part in shown.divide(sorted({at for m in STEERING.finditer(shown.plain) for at in m.span()})):
        if STEERING.fullmatch(part.plain):
            part.plain = escaped(part.plain)
        parts.append(part)
    return Text("").join(parts)


def print_table(
    console: Console,
    rows: Iterable[Sequence[str | Text]],
    header: Sequence[str] | None = None,
    right: Iterable[int] = (),
    indent: int = 2,
) -> None:
    """Print :func:`table_lines`, folded to the width of a terminal and in whole lines elsewhere."""
    width = console.width if console.is_terminal else None
    for line in table_lines(rows, header, right, indent, width):
        console.print(line, soft_wrap=True)


def print_line(console: Console, line: Text | str = "") -> None:
    """Print one line; a terminal gets it folded with the rest of the line indented, anything else as it is."""
    text = visible(line)
    if console.is_terminal and text.cell_len > console.width:
        indent = len(text.plain) - len(text.plain.lstrip(" "))
        first, rest = text[:indent], text[indent:]
        hang = min(indent + 4, console.width // 2)
        pieces = _fold(rest, console.width - hang)
        for i, piece in enumerate(pieces):
            console.print((first if i == 0 else Text(" " * hang)) + piece, soft_wrap=True)
        return
    console.print(text, soft_wrap=True)


def print_prose(
    console: Console, text: str | Text, indent: int = 0, label: str = "", style: str = ""
) -> None:
    """Print text folded to the console's width, under a label in the margin (``  why   ...``)."""
    body = text if isinstance(text, Text) else Text(text, style=style)
    body = Text("\n").join(visible(line) for line in body.split("\n", allow_blank=True))
    width = max(console.width - indent - len(label), 20)
    for i, line in enumerate(body.wrap(console, width, overflow="fold")):
        line.rstrip()
        margin = (
            Text(" " * indent).append(label, style="dim") if i == 0 else Text(" " * (indent + len(label)))
        )
        console.print(margin.append_text(line), soft_wrap=True)
