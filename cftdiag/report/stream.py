"""Writing to a stream whose reader may have gone (``cftdiag models | head``): that is no error, and the exit
code stays the verdict's.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def reader_gone(file: TextIO) -> None:
    """Send what is still to be written to nowhere, also what the interpreter flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, file.fileno())
        os.close(null)


def prepare() -> None:
    """Make stdout and stderr of this process such that nothing that is written to them raises for its letters, and
    that a stream which the shell has closed swallows what it gets.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write(text: str, file: TextIO | None = None) -> None:
    """Write ``text`` and a newline to ``file`` (default stdout)."""
    file = file or sys.stdout
    try:
        file.write(text if text.endswith("\n") else text + "\n")
        file.flush()
    except BrokenPipeError:
        reader_gone(file)
