"""``cftdiag fix``: the mechanical remedies of a check as a patch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cftdiag.cli.options import debug_option, json_flag
from cftdiag.errors import InputError
from cftdiag.report import stream

if TYPE_CHECKING:
    from cftdiag.fix.patch import Candidate
    from cftdiag.fix.prove import Proved


@click.command(short_help="The mechanical remedies of a check as a patch, each proved.")
@click.argument("path", metavar="CHECK.json")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A further file that may be changed, such as the module of the model; may be repeated.",
)
@click.option(
    "--diff/--apply", "diff", default=True, help="Print a unified diff (the default), or write the files."
)
@click.option("--unsafe", is_flag=True, help="Try unsafe remedies too.")
@click.option("--changes-numbers", is_flag=True, help="Try remedies that change what is trained too.")
@click.option("--no-proof", is_flag=True, help="Run no check: the patch of the first remedies, unproved.")
@json_flag
@debug_option
def fix(
    path: str,
    files: tuple[str, ...],
    diff: bool,
    unsafe: bool,
    changes_numbers: bool,
    no_proof: bool,
    as_json: bool,
) -> int:
    """Write the mechanical remedies of a check as a patch.

    CHECK.json is a file written by `cftdiag check --json`. Each remedy is written into the checked file (--model
    FILE.py:build, --config RUN.YAML or the script behind --), and the check is run again with it: only what leaves
    less breaks, recompiles or compiles stays in the patch. The diff goes to stdout, `git apply` takes it; the rest
    is told on stderr. Exit code 1 where nothing could be mended.
    """
    from cftdiag.fix import patch, prove
    from cftdiag.report.saved_check import read_check

    try:
        data = read_check(path)
    except ValueError as error:
        raise InputError(str(error)) from error
    places = patch.files_of(data, files)
    found = patch.candidates(data)
    chosen = [c for c in found if (unsafe or not c.unsafe) and (changes_numbers or not c.changes_numbers)]
    _held_back([c for c in found if c not in chosen])
    if not places:
        _in_words(found)
        raise InputError(
            f"{path}: the check names no file of yours; give the one that compiles the model with --file"
        )
    tried: list[Proved]
    if no_proof:
        none = prove.figures(data)
        made = [(c, patch.patches({p: patch.read(p) for p in places}, c.change)) for c in chosen]
        tried = [prove.Proved(remedy=c, patches=tuple(m), before=none, after=None) for c, m in made if m][:1]
        homeless: list[Candidate] = [c for c, m in made if not m]
    elif not data.get("asked"):
        raise InputError(
            f"{path}: does not say how it was made; write it again with cftdiag check --json, or give --no-proof"
        )
    else:
        tried, homeless = prove.prove(chosen, places, prove.checker(data["asked"]))
    kept = [row for row in tried if row.helps or no_proof]
    whole = _joined(kept)
    for row in tried:
        click.echo(_told(row, no_proof), err=True)
    _in_words(homeless)
    if as_json:
        stream.write(json.dumps(_json(tried, homeless, whole), indent=2))
    elif diff:
        for one in whole:
            stream.write(one.diff())
    if not diff:
        for one in whole:
            _write(one)
    return 0 if whole else 1


def _joined(rows: Sequence[Proved]) -> list[Any]:
    """One patch a file: each row stands on those before it."""
    from cftdiag.fix.patch import Patch

    joined: dict[Path, Patch] = {}
    for row in rows:
        for one in row.patches:
            first = joined.get(one.path, one)
            joined[one.path] = Patch(path=one.path, before=first.before, after=one.after)
    return list(joined.values())


def _told(row: Proved, unproved: bool) -> str:
    line = "; ".join(row.remedy.edit.splitlines())
    if unproved:
        return f"{line}: not proved"
    if row.after is None:
        return f"left out: {line}: the check with it came to no end: {row.reason}"
    if not row.helps:
        return f"left out: {line}: {row.after.against(row.before) or 'changes nothing'}"
    return f"proved: {line}: {row.after.against(row.before)}"


def _held_back(remedies: Sequence[Candidate]) -> None:
    for remedy in remedies:
        flag = "--unsafe" if remedy.unsafe else "--changes-numbers"
        click.echo(f"not tried without {flag}: {'; '.join(remedy.edit.splitlines())}", err=True)


def _in_words(remedies: Sequence[Candidate]) -> None:
    for remedy in remedies:
        click.echo(
            f"no place for it in the files given, by hand: {'; '.join(remedy.edit.splitlines())}", err=True
        )


def _json(tried: Sequence[Proved], homeless: Sequence[Candidate], whole: Sequence[Any]) -> dict[str, Any]:
    import dataclasses

    return {
        "schema": "cftdiag.fix/1",
        "edits": [
            {
                "edit": row.remedy.edit,
                "causes": list(row.remedy.causes),
                "helps": row.helps,
                "before": dataclasses.asdict(row.before),
                "after": None if row.after is None else dataclasses.asdict(row.after),
                "diff": "".join(one.diff() for one in row.patches),
            }
            for row in tried
        ],
        "by_hand": [remedy.edit for remedy in homeless],
        "diff": "".join(one.diff() for one in whole),
    }


def _write(one: Any) -> None:
    try:
        with open(one.path, "w", encoding="utf-8", newline="") as out:
            out.write(one.after)
    except OSError as error:
        raise click.UsageError(
            f"cannot write {one.path}: {error.strerror or error}; make it writable"
        ) from error
    click.echo(f"changed {one.path}", err=True)
