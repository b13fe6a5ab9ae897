"""``cftdiag report``: render a saved check."""

from __future__ import annotations

import click

from cftdiag.check.errors import InputError
from cftdiag.cli.options import debug_option, json_file, write_json, write_text


@click.command(short_help="Render a saved check.")
@click.argument("path", metavar="CHECK.json")
@json_file
@click.option("--markdown", "markdown_path", metavar="FILE|-", help="Write Markdown, for a pull request or a job summary.")
@click.option("--html", "html_path", metavar="FILE|-", help="Write one self-contained HTML page.")
@click.option("--sarif", "sarif_path", metavar="FILE|-", help="Write SARIF 2.1.0, for code scanning.")
@click.option("--junit", "junit_path", metavar="FILE|-", help="Write JUnit XML: a test case a block.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line alone.")
@debug_option
def report(path: str, quiet: bool, json_path: str | None, **paths: str | None) -> int:
    """Render CHECK.json, a file written by `cftdiag check --json`, in the terminal or in another form."""
    from cftdiag.report import html, junit, load, markdown, sarif, terminal

    try:
        data = load.read_check(path)
    except ValueError as error:
        raise InputError(str(error)) from error
    asked = {"json_path": json_path, **paths}
    streams = [name for name, target in asked.items() if target == "-"]
    if len(streams) > 1:
        raise InputError("only one form can go to stdout; give the others a file")
    if json_path is not None:
        write_json(json_path, data)
    for name, render in (("markdown_path", markdown.render), ("html_path", html.render), ("sarif_path", sarif.render), ("junit_path", junit.render)):
        target = paths[name]
        if target is not None:
            write_text(target, render(data))
    if not streams:
        terminal.show(data, quiet=quiet)
    return 0
