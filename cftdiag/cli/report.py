"""``cftdiag report``: render a saved check or a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from cftdiag.cli.options import (
    debug_option,
    json_file,
    markdown_option,
    one_to_stdout,
    output_format,
    write_json,
    write_text,
)
from cftdiag.error_text import one_line
from cftdiag.errors import InputError


@click.command(short_help="Render a saved check, a run or a kernels report.")
@click.argument("path", metavar="CHECK.json|RUN|KERNELS.json")
@json_file
@markdown_option
@click.option("--html", "html_path", metavar="FILE|-", help="Write one self-contained HTML page.")
@click.option("--sarif", "sarif_path", metavar="FILE|-", help="Write SARIF 2.1.0, for code scanning.")
@click.option("--junit", "junit_path", metavar="FILE|-", help="Write JUnit XML: a test case a block.")
@click.option(
    "--eager",
    metavar="S|RUN",
    help="Seconds of a step without torch.compile, or such a run: tells the break-even step of a run.",
)
@click.option(
    "--tlparse",
    "tlparse_dir",
    metavar="DIR",
    help="Run tlparse on the raw trace, into DIR, and link each compile to its page.",
)
@output_format
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict line alone.")
@debug_option
def report(
    path: str,
    quiet: bool,
    json_path: str | None,
    eager: str | None,
    tlparse_dir: str | None,
    output_format: str,
    **paths: str | None,
) -> int:
    """Render a check, a run or a kernels report in the terminal or in another form.

    CHECK.json is a file written by `cftdiag check --json`; RUN a run directory of `cftdiag run` or
    cftdiag.Monitor, finished or not, or a directory that TORCH_TRACE=DIR wrote; KERNELS.json a file of
    `cftdiag kernels --json`, or the directory of its --out.
    """
    from cftdiag.monitor import is_run
    from cftdiag.monitor.as_check import as_check
    from cftdiag.monitor.tlparse_pages import with_links, write_pages
    from cftdiag.report import ci, html, junit, markdown, sarif, saved_check, saved_document, terminal
    from cftdiag.report import run_terminal as run_view

    try:
        found = None if is_run(path) else saved_document.kernels_report(path)
        if found is not None:
            others = {"eager": eager, "tlparse_dir": tlparse_dir, **paths, "html_path": None}
            return _kernels(path, found, json_path, paths["html_path"], output_format, others)
        run = _read_run(path, eager) if is_run(path) or Path(path).is_dir() else None
        if tlparse_dir is not None:
            if run is None:
                raise InputError(f"{path} is a check, which has no raw trace; --tlparse takes a run")
            pages = write_pages(path, tlparse_dir)
            run = with_links(run, pages)
            for page in pages.indexes:
                click.echo(f"wrote {page}", err=True)
        data = saved_check.read_check(path) if run is None else as_check(run)
    except ValueError as error:
        raise InputError(str(error)) from error
    files = [json_path, *paths.values()]
    forms = [*files, "-" if output_format != "text" else None]
    one_to_stdout(forms)
    shown = "-" not in forms
    try:
        if json_path is not None:
            write_json(json_path, data if run is None else run)
        for name, render in (
            ("markdown_path", markdown.render),
            ("html_path", html.render),
            ("sarif_path", sarif.render),
            ("junit_path", junit.render),
        ):
            target = paths[name]
            if target is not None:
                write_text(target, render(data))
        # who asks for a form wants that form; the verdict says that all went well
        brief = quiet or any(files)
        if output_format != "text":
            write_text("-", ci.FORMATS[output_format](data))
        elif shown and run is not None:
            run_view.show(run, quiet=brief)
        elif shown:
            terminal.show(data, quiet=brief)
    except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: holds something that no rendering takes ({one_line(error)}); write the file again"
        ) from error
    if not quiet:
        for target in files:
            if target not in (None, "-"):
                click.echo(f"wrote {target}", err=True)
    return 0


def _kernels(
    path: str,
    data: dict[str, Any],
    json_path: str | None,
    html_path: str | None,
    output_format: str,
    others: dict[str, str | None],
) -> int:
    """Render a kernels report, which has fewer forms than a check."""
    from cftdiag.kernels import page, render

    if output_format != "text" or any(others.values()):
        raise InputError(f"{path} is a kernels report; --json and --html are its other forms")
    one_to_stdout([json_path, html_path])
    try:
        if html_path is not None:
            write_text(html_path, page.render(data))
        if json_path is not None:
            write_json(json_path, data)
        if html_path is None and json_path is None:
            render.show(data)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: holds something that no rendering takes ({one_line(error)}); write the file again"
        ) from error
    for target in (json_path, html_path):
        if target not in (None, "-"):
            click.echo(f"wrote {target}", err=True)
    return 0


def _read_run(path: str, eager: str | None) -> dict[str, Any]:
    from cftdiag.monitor import report as report_run

    return report_run(path, eager=_seconds(eager))


def _seconds(eager: str | None) -> float | str | None:
    """``--eager``: a number of seconds, else the path of a run."""
    if eager is None:
        return None
    try:
        seconds = float(eager)
    except ValueError:
        return eager
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--eager {eager} is no time of a step; give seconds above 0, or a run")
    return seconds
