"""Where each rank is, for the message when one of them does not come to a collective."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

POSITIONS = Path("run", "positions")
"""In the output directory."""
_WIDTH = 64

#: What a collective's error says of a rank that is not there -> what that is, and what to do.
_ABSENT = (
    (
        ("timed out", "timeout"),
        "did not come in time",
        "look at what it did there, or give a longer --collective-timeout",
    ),
    (("connection closed by peer", "connection reset by peer"), "has ended", "look at what it said"),
)


class Positions:
    """Each rank writes a line of 64 bytes into a file of its own, again and again."""

    def __init__(self, directory: Path, *, rank: int, world: int) -> None:
        """``directory`` is seen by all ranks."""
        self._directory, self._rank, self._world = directory, rank, world
        self._step = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def __enter__(self) -> Positions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._file)
        mistake = isinstance(error, ValueError) and not isinstance(error.__cause__, RuntimeError)
        if mistake and self._step == 0:  # before anything began: the directory is as it was found
            with contextlib.suppress(OSError):
                self._path(self._rank).unlink()
                self._directory.rmdir()
                self._directory.parent.rmdir()

    def at(self, step: int, what: str) -> None:
        """This rank is now in ``what`` of ``step``; 0 is before the first one of this start."""
        self._step = step
        with contextlib.suppress(OSError):  # a full disk costs the message, not the run
            os.pwrite(self._file, f"{step} {what}".encode()[: _WIDTH - 1].ljust(_WIDTH - 1) + b"\n", 0)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Turn a collective's timeout, and the end of another rank, into one line that names where the ranks are. Raises
        ``ValueError``.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error).lower()
            for signs, what, advice in _ABSENT:
                if any(sign in text for sign in signs):
                    raise ValueError(
                        f"rank {self._rank}, {_place(self._step)}: another rank {what}: {self.describe()}; {advice}"
                    ) from error
            raise

    def describe(self) -> str:
        """The ranks that are behind the others, or all where none is."""
        found: list[tuple[int, int, str, float]] = []
        for rank in range(self._world):
            try:
                step, _, what = self._path(rank).read_text().strip().partition(" ")
                found.append((int(step), rank, what, time.time() - self._path(rank).stat().st_mtime))
            except (OSError, ValueError):
                found.append((-1, rank, "", 0.0))
        newest = max(found)[0]
        behind = [entry for entry in found if entry[0] < newest] or [e for e in found if e[1] != self._rank]
        return ", ".join(
            f"rank {rank} has been {'in ' if step else ''}{_place(step)}, {what}, for {since:.0f} s"
            if step >= 0
            else f"rank {rank} has not begun"
            for step, rank, what, since in behind
        )

    def _path(self, rank: int) -> Path:
        return self._directory / f"rank{rank:05d}"


def _place(step: int) -> str:
    return f"step {step}" if step else "before its first step"
