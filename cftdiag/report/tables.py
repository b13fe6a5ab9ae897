"""Tables of the verbs that list things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from cftdiag.check.catalogue import Entry
from cftdiag.report.console import console_for, print_line, table_lines
from cftdiag.report.summary import parameters, plural, yes_no


def show_models(entries: Sequence[Entry], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print entries of the catalogue, one a line, and their number."""
    console = console_for(file, width)
    rows = [[e.name, parameters(e.params), str(e.layers or "-"), e.model_type, e.hub_id, yes_no(e.verified)] for e in entries]
    for line in table_lines(rows, header=("name", "parameters", "layers", "architecture", "hub id", "verified"), right=(1, 2), indent=0):
        print_line(console, line)
    print_line(console, f"{plural(len(entries), 'entry').replace('entrys', 'entries')}; verified: the count agrees with the published total")
