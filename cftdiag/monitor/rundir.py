"""The run directory: its layout, and writing into it so that nothing that goes wrong there reaches the
training.

- ``run.json``: what runs, and how it ended
- ``events/rank00000.jsonl``: one event a line, appended
- ``ranks/rank00000.json``: what a rank is doing now, overwritten in place
- ``payloads/<sha256>``: graphs and generated code, on request
- ``trace/``: torch's raw structured trace, on request
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RUN_SCHEMA = "cftdiag.rundir/1"
RUN_FILE = "run.json"
EVENTS = "events"
RANKS = "ranks"
PAYLOADS = "payloads"
TRACE = "trace"

#: Seconds between two attempts to write again after a failure: a full disk may get room, a vanished mount may
#: come back.
RETRY_S = 10.0


def rank_name(rank: int) -> str:
    """``rank00003``: stem of the files of a rank."""
    return f"rank{rank:05d}"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file so that a reader sees the old or the new text, never half of one; raises
    ``OSError``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Lines:
    """Appends whole lines to one file; survives what disks do.

    Each ``write`` is one ``os.write`` on an ``O_APPEND`` descriptor: after it returns, the line outlives the
    process. When it fails the file is cut back to its last whole line, ``warn`` is called once, and writing
    is tried again every :data:`RETRY_S` seconds; ``lost`` counts what was dropped meanwhile. Nothing is
    raised.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._warn = warn
        self._fd: int | None = None
        self._inode: tuple[int, int] | None = None
        self._retry_at = 0.0

    def write(self, text: str) -> bool:
        """Append ``text``, which ends in a newline; True when it is written."""
        if self._retry_at and time.monotonic() < self._retry_at:
            self.lost += text.count("\n")
            return False
        try:
            self._append(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.lost += text.count("\n")
            self._retry_at = time.monotonic() + RETRY_S
            self.close()
            self._warn(
                f"cannot write {self.path} ({error.strerror or error}); the training goes on, events are lost until it can be written again"
            )
            return False
        self._retry_at = 0.0
        return True

    def close(self) -> None:
        """Close the file; a later ``write`` opens it again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            # A vanished network mount reports here what the writes have reported already.
            with contextlib.suppress(OSError):
                os.close(fd)

    def _append(self, data: bytes) -> None:
        if self._fd is not None and not self._still_there():
            self.close()
        if self._fd is None:
            self._open()
        assert self._fd is not None
        before = os.fstat(self._fd).st_size
        done = os.write(self._fd, data)
        if done < len(data):
            # A full disk takes what fits. Half a line would spoil the next one, so it is taken back.
            os.ftruncate(self._fd, before)
            raise OSError(28, "no space left")

    def _open(self) -> None:
        # The directory is not made again: where it was a mount that has gone, the files would land beneath
        # it.
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._mend()
        stat = os.fstat(self._fd)
        self._inode = stat.st_dev, stat.st_ino

    def _mend(self) -> None:
        """A writer that was killed may have left half a line: end it, so that it spoils no other."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size:
            with open(self.path, "rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    os.write(self._fd, b"\n")

    def _still_there(self) -> bool:
        try:
            stat = os.stat(self.path)
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self._inode


class State:
    """A small JSON file that is overwritten in place, many times: one system call each, no new file.

    A reader may find half of it once in a while and takes it again; see :func:`read_json`. Raises
    ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._length = 0

    def write(self, text: str) -> None:
        """Replace the content with one line of text."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        data = text.encode("ascii", "backslashreplace")
        # Spaces cover what is left of a longer line before it.
        self._length = max(self._length, len(data))
        os.pwrite(self._fd, data.ljust(self._length) + b"\n", 0)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class Claim:
    """The events file of this process: the rank's own, or one with the process id added while another live
    process writes that one.

    A script may start helpers that compile too; two writers in one file would mix two histories. Held until
    ``close`` or the process's end; raises ``OSError`` when the directory cannot be written.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        folder = directory / EVENTS
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{rank_name(rank)}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.path = folder / f"{rank_name(rank)}.{os.getpid()}.jsonl"
        except OSError:
            pass  # a file system without locks: better one mixed file in a rare case than none

    def close(self) -> None:
        """Let another process have the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is missing or is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
