"""Of what the keys in a directory of compiled code are made: noted beside the entries by the monitor and the trainer,
for torch keeps the hash alone, and a later miss is to say which part is another. Torch-free.

One line of JSON for each key, in ``cftdiag-keys.jsonl`` of the directory. Whatever goes wrong with the file costs what it
says, never a training.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag import artifacts, cache_folder

#: Bytes from which on the file begins anew; what it held is kept once.
_LARGE = 8 << 20
#: Newest lines that a process reads of a file.
_READ = 512
#: What a part's name may be: it is shown, and somebody else may have written the file.
_PART = re.compile(r"[\w.<>\[\]-]{1,160}")
#: Keys that this process has noted, whoever of its recorders did.
_WRITTEN: set[tuple[str, str, str]] = set()


def missed_key(lookup: Mapping[str, Any]) -> str:
    """``differs from 0/0 of 2026-11-30 09:12 in gm, torch_version``, of a miss in a compile cache whose nearest key is
    known: ``nearest`` and ``differs``.
    """
    parts = ", ".join(lookup.get("differs") or ())
    if not parts:
        return f"its key is that of {lookup['nearest']}, whose entry is gone or holds for other sizes"
    return f"differs from {lookup['nearest']} in {parts}"


class Notes:
    """The notes of one directory, by default torch's own of this environment."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def known(self, cache: str) -> list[tuple[str, dict[str, str]]]:
        """(name, parts) of the keys of earlier processes, the oldest first: ``0/0 of 2026-11-30 09:12``."""
        found: dict[str, tuple[str, dict[str, str]]] = {}
        for row in self._rows():
            if row["cache"] != cache or row["process"] == _process():
                continue
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["time"]))
            found[row["key"]] = (f"{row['compile_id']} of {when}", row["parts"])
        return list(found.values())

    def add(self, cache: str, key: str, compile_id: str, parts: Mapping[str, str]) -> None:
        """Note a key once; nothing where the directory is not there or cannot be written."""
        folder = self._place()
        if (str(folder), cache, key) in _WRITTEN or not parts:
            return
        _WRITTEN.add((str(folder), cache, key))
        made_by = {name: value for name, value in artifacts.fingerprint(None).items() if name != "devices"}
        row = {
            "cache": cache, "key": key, "compile_id": compile_id, "time": time.time(), "process": _process(),
            "made_by": made_by, "parts": dict(parts),
        }  # fmt: skip
        file = folder / cache_folder.KEYS
        try:
            if file.exists() and file.stat().st_size > _LARGE:
                file.replace(file.with_suffix(".old"))
            # one write a line: ranks share the directory
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), "ab", buffering=0) as out:
                out.write(json.dumps(row).encode() + b"\n")
        except OSError:
            return

    def made_by(self) -> list[tuple[dict[str, str | None], int]]:
        """(versions, number of keys that they made), the newest first."""
        counted: dict[str, set[tuple[str, str]]] = {}
        for row in self._rows(most=None):
            text = json.dumps(row["made_by"], sort_keys=True)
            keys = counted.pop(text, set())
            counted[text] = keys | {(row["cache"], row["key"])}
        return [(json.loads(text), len(keys)) for text, keys in reversed(counted.items())]

    def _place(self) -> Path:
        return self._folder or cache_folder.default()

    def _rows(self, most: int | None = _READ) -> list[dict[str, Any]]:
        try:
            lines = (self._place() / cache_folder.KEYS).read_bytes().splitlines()
        except OSError:
            return []
        read = (_row(line) for line in (lines if most is None else lines[-most:]))
        return [row for row in read if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as it is used; None for one that is half written or no note."""
    try:
        row = json.loads(line)
        return {
            **{name: _plain(row[name]) for name in ("cache", "key", "compile_id", "process")},
            "time": float(row["time"]),
            "made_by": {_plain(k): None if v is None else _plain(v) for k, v in row["made_by"].items()},
            "parts": {str(k): _plain(v) for k, v in row["parts"].items() if _PART.fullmatch(str(k))},
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _plain(text: Any) -> str:
    found = str(text)
    if not found.isprintable() or len(found) > 200:
        raise ValueError("no text of ours")
    return found


def _process() -> str:
    """Of this process: a pid comes again, but not with the same start."""
    try:
        started = os.stat(f"/proc/{os.getpid()}").st_ctime_ns
    except OSError:
        started = 0
    return f"{os.getpid()}-{started}"
