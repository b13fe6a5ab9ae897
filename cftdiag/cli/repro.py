"""``cftdiag check --repro DIR``: one small file of plain torch for each finding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cftdiag.fix import patch

option = click.option(
    "--repro",
    metavar="DIR",
    help="Write one small file of plain torch for each finding into DIR, for a bug report.",
)


def refuse(model: str | None, *, other: bool) -> None:
    """Refuse what has no one program: ``other`` says that a command or a configuration is checked."""
    if other or model is None:
        raise click.UsageError(
            "--repro takes the program of --model; a command or a configuration is no one file"
        )


def write(directory: str, data: Mapping[str, Any], model: str) -> None:
    """Write the repros of a check of ``model`` into ``directory``, made where it is missing."""
    from cftdiag.fix.repro import repros
    from cftdiag.subject import resolve

    origin = resolve(model)
    source = None
    if origin.type == "file" and origin.path is not None:
        source = patch.read(Path(origin.path))
    elif origin.type != "config":
        raise click.UsageError("--repro takes a FILE.py:build, a name of `cftdiag models` or a config.json")
    found = repros(data, source, origin.config, origin.attr)
    if not found:
        click.echo("no finding that plain torch on a CPU shows: nothing to reproduce", err=True)
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (Path(directory) / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            click.echo(f"wrote {Path(directory) / name}", err=True)
    except OSError as error:
        raise click.UsageError(
            f"cannot write into {directory}: {error.strerror or error}; name another directory"
        ) from error
