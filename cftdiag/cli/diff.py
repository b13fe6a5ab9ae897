"""``cftdiag diff``: what changed between two checks, runs, kernels reports or plans."""

from __future__ import annotations

import click

from cftdiag.cli.options import (
    check_writable,
    debug_option,
    fail_on_option,
    json_file,
    markdown_option,
    write_json,
    write_text,
)
from cftdiag.errors import InputError


@click.command(short_help="What changed between two checks, runs, kernels reports or plans.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@json_file
@markdown_option
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=1, min_open=True),
    metavar="FACTOR",
    help="Compiling or a steady step that takes more than FACTOR times as long is a regression (a warning).",
)
@fail_on_option
@click.option("-q", "--quiet", is_flag=True, help="Print the last line alone.")
@debug_option
def diff(
    before: str,
    after: str,
    json_path: str | None,
    markdown_path: str | None,
    max_slowdown: float | None,
    fail_on: str,
    quiet: bool,
) -> int:
    """Say what changed from A to B: JSON files of `cftdiag check`, `report`, `kernels` or `check --plan`, or
    run directories. A check and a run can be compared too: what was foreseen with what came.

    Addresses, ids, names of symbols, folders and line numbers have no part in it: two equal runs differ in
    nothing. Exit code 1: something is worse, by at least --fail-on.
    """
    from cftdiag import compare
    from cftdiag.report import diff as view
    from cftdiag.report.saved_document import read_document

    check_writable(json_path, markdown_path)
    try:
        found = compare.diff(read_document(before), read_document(after), max_slowdown=max_slowdown)
    except ValueError as error:
        raise InputError(str(error)) from error
    if "-" not in (json_path, markdown_path):
        view.show(found, quiet=quiet)
    if json_path is not None:
        write_json(json_path, found.to_dict())
    if markdown_path is not None:
        write_text(markdown_path, view.render(found))
    return found.exit_code(fail_on)
