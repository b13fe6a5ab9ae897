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
@click.option(
    "--example",
    is_flag=True,
    help="Print the example alone, a file that `cftdiag check --model FILE.py:build` takes.",
)
@json_flag
@debug_option
def explain(cause: str | None, example: bool, as_json: bool) -> int:
    """Explain CAUSE, a key such as seq_len or tensor.item; without one, list all causes."""
    from cftdiag.diagnose import CAUSES

    if cause is not None and cause not in CAUSES:
        close = difflib.get_close_matches(cause, CAUSES, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "run `cftdiag explain` for the list"
        raise click.UsageError(f"unknown cause {cause!r}; {hint}")
    if example:
        stream.write(_example(cause))
        return 0
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


def _example(cause: str | None) -> str:
    from cftdiag.diagnose import CAUSES

    if cause is None:
        raise click.UsageError("--example prints the example of one cause; name it, for example seq_len")
    if not CAUSES[cause].example:
        raise click.UsageError(
            f"{cause} has no example: it takes a GPU, Inductor or several ranks; `cftdiag explain {cause}` tells more"
        )
    return CAUSES[cause].example
