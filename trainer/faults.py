"""What goes wrong outside of this program, in one line that says where and what to do: memory and disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch


class OutOfMemory(ValueError):
    """Memory of the device or the host ran out."""


@contextlib.contextmanager
def memory_of(what: Callable[[], str], remedy: str) -> Iterator[None]:
    """Turn running out of memory into :class:`OutOfMemory`: ``what`` was going on, ``remedy`` is what to change."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        where = "GPU" if isinstance(error, torch.OutOfMemoryError) else "host"
        raise OutOfMemory(f"{what()}: out of {where} memory ({_sizes(error)}); {remedy}") from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in an error of writing it; raises ``ValueError``."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
    except Exception as error:
        # The tokenizers library has no type of its own for what the system refuses.
        if not (
            isinstance(error, SafetensorError) or (type(error) is Exception and "os error" in str(error))
        ):
            raise
        raise ValueError(f"cannot write {path}: {' '.join(str(error).split())}") from error


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        part in str(error) for part in ("DefaultCPUAllocator", "not enough memory", "can't allocate memory")
    )


def _sizes(error: BaseException) -> str:
    """The figures in the text of an allocator: its first sentences."""
    text = " ".join(str(error).split())
    start = max(text.find("Tried to allocate"), text.find("you tried to allocate"), 0)
    return (
        text[start:].partition(". Of the allocated")[0].partition(" Error code")[0][:200].rstrip(".")
        or "no figures"
    )
