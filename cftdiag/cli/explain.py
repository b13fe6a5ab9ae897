"""``cftdiag explain``: the page of one cause, or the list of causes."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import Any

import click

from cftdiag.cli.options import debug_option, json_flag
from cftdiag.report import stream


@click.command(short_help="What a cause means, an example, the fix.")
@click.argument("cause", required=False)
@json_flag
@debug_option
def explain(cause: str | None, as_json: bool) -> int:
    """Explain CAUSE, a key such as seq_len or tensor.item; without one, list all causes."""
    from cftdiag.diagnose import CAUSES

    if cause is not None and cause not in CAUSES:
        close = difflib.get_close_matches(cause, CAUSES, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "run `cftdiag explain` for the list"
        raise click.UsageError(f"unknown cause {cause!r}; {hint}")
    if as_json:
        data: Any = (
            [dataclasses.asdict(c) for c in CAUSES.values()]
            if cause is None
            else dataclasses.asdict(CAUSES[cause])
        )
        stream.write(json.dumps(data, indent=2))
        return 0
    from cftdiag.report import cause_page

    if cause is None:
        cause_page.show_list([dataclasses.asdict(c) for c in CAUSES.values()])
    else:
        cause_page.show_page(dataclasses.asdict(CAUSES[cause]))
    return 0
