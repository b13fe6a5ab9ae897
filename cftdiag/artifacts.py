"""A file of compiled artifacts, as `torch.compiler.save_cache_artifacts` gives them, with what they were made
by: so that it can be said before a run whether they will hit, and so that a file that is damaged, or that
others could have written, is never loaded. Loading artifacts runs code that is in them. Torch-free.

A line ``cftdiag.artifacts/1``, a line of JSON (:class:`Head`), then torch's bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import stat
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

MAGIC = b"cftdiag.artifacts/1\n"

#: Of a head; more is no head.
_LONGEST = 1 << 20


class Unusable(ValueError):
    """A file that is not loaded; ``str(error)`` is one line that says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """What a file holds and by what it was made."""

    fingerprint: Mapping[str, str | None]
    """Versions and devices of which each decides whether an artifact hits."""
    artifacts: Mapping[str, int]
    """Kind of artifact -> number."""
    size: int
    """Bytes of the artifacts."""
    sha256: str
    time: float
    """Unix seconds at which it was written."""

    def differs(self, here: Mapping[str, str | None]) -> dict[str, tuple[str | None, str | None]]:
        """Part of the fingerprint -> (of the file, here), for those that are not the same."""
        names = dict.fromkeys([*self.fingerprint, *here])
        return {
            name: (self.fingerprint.get(name), here.get(name))
            for name in names
            if self.fingerprint.get(name) != here.get(name)
        }


def fingerprint(devices: str | None) -> dict[str, str | None]:
    """Of this environment. ``devices`` names the accelerators that code is generated for; None for the CPU."""
    found: dict[str, str | None] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "devices": devices}


def write(path: Path, data: bytes, artifacts: Mapping[str, int], made_by: Mapping[str, str | None]) -> None:
    """Write a file that only its owner can write, whole or not at all. Raises ``OSError``."""
    head = Head(
        fingerprint=dict(made_by),
        artifacts=dict(artifacts),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        time=time.time(),
    )
    partial = path.with_suffix(path.suffix + ".partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(MAGIC + json.dumps(dataclasses.asdict(head)).encode() + b"\n")
        file.write(data)
    partial.replace(path)


def read_head(path: Path) -> Head:
    """What a file says of itself; nothing of it is loaded. Raises :class:`Unusable`."""
    try:
        with open(path, "rb") as file:
            return _head(file.read(len(MAGIC) + _LONGEST), path)[0]
    except OSError as error:
        raise Unusable(f"{path}: cannot be read ({error.strerror or error})") from error


def read(path: Path) -> tuple[Head, bytes]:
    """The head and torch's bytes. Raises :class:`Unusable` for a file that others can write or that is not as it
    was written.
    """
    try:
        with open(path, "rb") as file:
            _refuse_foreign(os.fstat(file.fileno()), path)
            data = file.read()
    except OSError as error:
        raise Unusable(f"{path}: cannot be read ({error.strerror or error})") from error
    head, start = _head(data, path)
    body = data[start:]
    if len(body) != head.size or hashlib.sha256(body).hexdigest() != head.sha256:
        raise Unusable(f"{path}: damaged, its checksum does not hold; remove it")
    return head, body


def _refuse_foreign(status: os.stat_result, path: Path) -> None:
    """Artifacts hold code: whoever can write the file can run code here."""
    if status.st_uid not in (os.geteuid(), 0):
        raise Unusable(f"{path}: belongs to another user (uid {status.st_uid}), who could put code into it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"{path}: others can write it and put code into it; run chmod go-w {path}")


def _head(data: bytes, path: Path) -> tuple[Head, int]:
    line, newline, _ = data[len(MAGIC) :].partition(b"\n")
    if not data.startswith(MAGIC) or not newline:
        raise Unusable(f"{path}: no file of compiled artifacts, or damaged; remove it")
    try:
        values: dict[str, Any] = json.loads(line)
        head = Head(
            fingerprint=dict(values["fingerprint"]),
            artifacts={str(kind): int(count) for kind, count in values["artifacts"].items()},
            size=int(values["size"]),
            sha256=str(values["sha256"]),
            time=float(values["time"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unusable(f"{path}: damaged, its head cannot be read; remove it") from error
    return head, len(MAGIC) + len(line) + 1
