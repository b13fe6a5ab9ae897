"""``cftdiag cache``: compile caches: what is there, and what of it will hit."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click

from cftdiag.cli.options import check_writable, debug_option, json_flag
from cftdiag.errors import InputError
from cftdiag.report import stream


@click.command(short_help="Compile caches: what is there, its age and size, whether it will hit.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--pack",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the directory PATH into FILE, for other nodes.",
)
@click.option(
    "--unpack",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Lay the file PATH out in DIR, which a run takes as TORCHINDUCTOR_CACHE_DIR.",
)
@json_flag
@debug_option
def cache(paths: tuple[Path, ...], pack: Path | None, unpack: Path | None, as_json: bool) -> int:
    """Show compile caches: directories of TORCHINDUCTOR_CACHE_DIR, and files that the trainer's --compile-cache
    writes. Without PATH: the directory that torch takes here.

    Of a file it is said whether it can hit here: artifacts of another torch, triton, Python or device never do.
    A file that is damaged or that others can write is refused; exit code 1.
    """
    from cftdiag import cache_folder
    from cftdiag.report.tables import show_cache

    if pack is not None or unpack is not None:
        paths = (_carry(paths, pack, unpack),)
    rows = [_one(path) for path in paths or (cache_folder.default(),)]
    if as_json:
        stream.write(json.dumps(rows, indent=2))
    else:
        for row in rows:
            show_cache(row, now=time.time())
    return int(any(row.get("refused") for row in rows))


def _carry(paths: tuple[Path, ...], pack: Path | None, unpack: Path | None) -> Path:
    """Pack or unpack; returns what is to be shown then."""
    from cftdiag import artifacts, cache_folder, cache_pack

    if (pack is None) == (unpack is None) or len(paths) > 1:
        raise InputError("give one PATH with --pack or --unpack, and one of the two")
    if pack is not None:
        check_writable(str(pack))
        cache_pack.pack(paths[0] if paths else cache_folder.default(), pack)
        return pack
    assert unpack is not None
    if not paths or not paths[0].is_file():
        raise InputError("--unpack takes a file of --pack or of the trainer's --compile-cache as PATH")
    try:
        cache_pack.unpack(paths[0], unpack)
    except artifacts.Unusable as error:
        raise InputError(str(error)) from error
    return unpack


def _one(path: Path) -> dict[str, Any]:
    """JSON-ready: a directory's kinds, or a file's head and what differs here."""
    from cftdiag import artifacts, cache_folder

    row: dict[str, Any]
    if not path.is_file():
        try:
            row = {"schema": "cftdiag.cache/1", **dataclasses.asdict(cache_folder.read(path))}
        except ValueError as error:
            raise InputError(str(error)) from error
        return row | {"made_by": _makers(path)}
    row = {"schema": "cftdiag.cache/1", "path": str(path), "refused": None}
    try:
        head, _ = artifacts.read(path)
    except artifacts.Unusable as error:
        return row | {"refused": str(error)}
    differs = head.differs(artifacts.fingerprint(_device(head.fingerprint.get("devices"))))
    return row | {
        **dataclasses.asdict(head),
        "differs": {name: list(pair) for name, pair in differs.items()},
        "hits": not differs,
    }


def _makers(folder: Path) -> list[dict[str, Any]]:
    """Versions that made the keys of a directory, as far as the monitor or the trainer has noted them."""
    from cftdiag import artifacts
    from cftdiag.cache_keys import Notes

    here = artifacts.fingerprint(None)
    rows = []
    for made_by, keys in Notes(folder).made_by():
        differs = {name: [was, here.get(name)] for name, was in made_by.items() if was != here.get(name)}
        rows.append({"fingerprint": made_by, "keys": keys, "differs": differs, "hits": not differs})
    return rows


def _device(wanted: str | None) -> str | None:
    """The accelerator here; asked for only where the file was made for one."""
    from cftdiag import cache_pack

    return None if wanted is None else cache_pack.device()
