"""``--baseline``, ``--write-baseline``: what of a check is known, and how its exit code follows from the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cftdiag.cli.options import check_writable
from cftdiag.errors import InputError

if TYPE_CHECKING:
    from cftdiag.gate import Baseline, Gate

Command = TypeVar("Command", bound=Callable[..., Any])


def options(function: Command) -> Command:
    """The options, for a verb that checks."""
    for decorate in (
        click.option(
            "--write-baseline",
            metavar="FILE",
            help="Write the findings of this check as a baseline; they count as known.",
        ),
        click.option(
            "--baseline",
            metavar="FILE",
            help="A file of --write-baseline: only findings that are not in it make the exit code 1.",
        ),
    ):
        function = decorate(function)
    return function


def read(baseline: str | None, write_baseline: str | None) -> Baseline | None:
    """The baseline, before the work is done; a file that cannot be read or written is refused."""
    check_writable(write_baseline)
    if baseline is None:
        return None
    from cftdiag.gate import Baseline

    try:
        return Baseline.read(baseline)
    except ValueError as error:
        raise InputError(str(error)) from error


def judge(data: Mapping[str, Any], baseline: Baseline | None, write_baseline: str | None) -> Gate:
    """Hold the check against the baseline and the comments of its files, and write the next baseline of what
    no comment accepts.
    """
    from cftdiag.diagnose import CAUSES
    from cftdiag.fix.patch import files_of
    from cftdiag.gate import Baseline, judge

    sources = files_of(data)
    gate = judge(data, baseline=baseline, sources=sources, causes=CAUSES)
    if write_baseline is None or data["verdict"] == "error":
        return gate
    by_comment = {i for i, row in gate.accepted.items() if row["by"] == "comment"}
    kept = Baseline.of(data["findings"], without=by_comment)
    try:
        kept.write(write_baseline)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"wrote {write_baseline}: {len(kept.entries)} known", err=True)
    return judge(data, baseline=kept, sources=sources, causes=CAUSES)
