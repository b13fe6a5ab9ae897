"""``cftdiag models``: the catalogue."""

from __future__ import annotations

import json

import click

from cftdiag import catalogue
from cftdiag.cli.options import debug_option, json_flag
from cftdiag.report import stream


@click.command(short_help="The catalogue of model configurations.")
@click.argument("filter_text", metavar="[FILTER]", required=False)
@json_flag
@debug_option
def models(filter_text: str | None, as_json: bool) -> int:
    """List the catalogue, or the entries whose name, hub id or architecture contains FILTER."""
    found = catalogue.search(filter_text)
    if as_json:
        stream.write(json.dumps([entry.to_dict() for entry in found], indent=2))
        return 0
    if not found:
        close = catalogue.close_matches(filter_text or "")
        hint = (
            f"the closest names are {', '.join(close)}"
            if close
            else "run `cftdiag models` for the whole list"
        )
        raise click.UsageError(f"no entry of the catalogue contains {filter_text!r}; {hint}")
    from cftdiag.report import tables

    tables.show_models(found)
    return 0
