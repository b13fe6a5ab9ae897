"""``cftdiag upgrade``: the same check in two environments, and what changed."""

from __future__ import annotations

from pathlib import Path

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


@click.command(
    short_help="The same check with another torch: what will break or get slower.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--to",
    "to",
    multiple=True,
    metavar="NAME==VERSION",
    help="Package to upgrade, as pip takes it; may be repeated.",
)
@click.option(
    "--from",
    "since",
    multiple=True,
    metavar="NAME==VERSION",
    help="The other way round: the check before the present versions.",
)
@click.option(
    "--python", metavar="PATH", help="The interpreter of an environment that is there, instead of --to."
)
@click.option(
    "--environment",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to make the environment.  [default: in the user's cache, made once]",
)
@json_file
@markdown_option
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep both checks in DIR, as before.json and after.json.",
)
@fail_on_option
@click.option("-q", "--quiet", is_flag=True, help="Print the last line alone.")
@debug_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- CHECK ARGUMENTS...")
def upgrade(
    to: tuple[str, ...],
    since: tuple[str, ...],
    python: str | None,
    environment: Path | None,
    json_path: str | None,
    markdown_path: str | None,
    keep: Path | None,
    fail_on: str,
    quiet: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run one check with the present versions and with others, and print the difference.

    The arguments behind -- are those of `cftdiag check`. With --to, an environment is made beside the present
    one: what is named is installed there, all else is taken from here. The present environment is never
    changed. Exit code 1: something gets worse, by at least --fail-on.
    """
    from cftdiag import compare
    from cftdiag import upgrade as room
    from cftdiag.report import diff as view
    from cftdiag.upgrade.checks import refuse

    if sum(map(bool, (to, since, python))) != 1:
        raise InputError("give one of --to, --from and --python: the versions to compare with")
    if environment is not None and python is not None:
        raise InputError("--environment is made for --to and --from; --python names one that is there")
    refuse(arguments)
    check_writable(json_path, markdown_path)

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    other = room.existing(python) if python else room.make(to or since, environment, say)
    here = room.present()
    first, second = (other, here) if since else (here, other)
    before = room.check_in(first, arguments, say)
    after = room.check_in(second, arguments, say)
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"cannot make {keep}: {error.strerror or error}; name another") from error
        for name, data in (("before.json", before), ("after.json", after)):
            write_json(str(keep / name), data)
    found = compare.diff(before, after)
    if "-" not in (json_path, markdown_path):
        view.show(found, quiet=quiet)
    if json_path is not None:
        write_json(json_path, found.to_dict())
    if markdown_path is not None:
        write_text(markdown_path, view.render(found))
    return found.exit_code(fail_on)
