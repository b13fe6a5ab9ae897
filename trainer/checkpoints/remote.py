"""Checkpoints on an object store: copied into a directory of this machine, and then read like any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trainer.checkpoints.layout import PARTIAL, STATE, damage, problem_of

FETCHED = "fetched"
"""Where copies lie in the output directory."""


def is_remote(path: str) -> bool:
    """True for what has a scheme, such as ``s3://bucket/run/checkpoints/step-00000100``."""
    return "://" in path


def require_local(path: str, option: str) -> None:
    """Raise ``ValueError`` for a path that has a scheme where files of this machine are written."""
    if is_remote(path):
        raise ValueError(
            f"{option} {path} is no directory of this machine; give one, and copy checkpoints from there: one that has "
            "its name is whole"
        )


def fetch(url: str, directory: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Copy the checkpoint at ``url`` into ``directory`` by fsspec, and return where it is; a whole copy of the very
    same checkpoint that is there already is taken. Raises ``ValueError`` where fsspec, its part for the store, or the checkpoint is missing.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ValueError(
            f"{url} needs the package fsspec, which is not installed; pip install fsspec, or copy the checkpoint here"
        ) from error
    name = url.rstrip("/").rpartition("/")[2]
    copy, partial = directory / name, directory / f"{name}{PARTIAL}"
    try:
        system, path = url_to_fs(url.rstrip("/"))
        there = system.isdir(path)
        # The checksums of all files are in that one: another run's step, or today's `last`, differs in it.
        whole = there and copy.exists() and problem_of(copy) is None and damage(copy) is None
        if whole and system.cat_file(f"{path}/{STATE}") == (copy / STATE).read_bytes():
            return copy
        if there:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            system.get(f"{path}/", f"{partial}/", recursive=True)
            shutil.rmtree(copy, ignore_errors=True)
            partial.rename(copy)
    except Exception as error:  # a store raises what it likes: no credentials, no network, no such bucket
        text = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cannot read {url}: {text}") from error
    if not there:
        raise ValueError(
            f"{url} is not there, or no checkpoint; a checkpoint is a directory named step-NNNNNNNN"
        )
    say(f"copied {url} to {copy}")
    return copy
