"""Values and paths, described without running anything of the user's that may fail."""

from __future__ import annotations

import os
import sys
from typing import Any

from cftdiag.details import Argument, ScalarArgument, TensorArgument


def describe(value: Any) -> Argument | None:
    """What is told of an argument: a tensor's metadata or a scalar's value; None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        return TensorArgument(
            shape=tuple(_size(n) for n in value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            requires_grad=bool(value.requires_grad),
            device=str(value.device),
            cls=type(value).__name__,
        )
    if value is None or isinstance(value, bool | int | float | str):
        told = value[:200] if isinstance(value, str) else value
        return ScalarArgument(value=told, type=type(value).__name__)
    return None


def short_repr(value: Any) -> str:
    """A ``repr`` of at most 200 characters on one line: a tensor's metadata instead of its data, and of what takes
    several lines (a module with children) the class.
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__}(shape={[_size(n) for n in value.shape]}, dtype={value.dtype})"
    try:
        text = repr(value)
        return f"{type(value).__module__}.{type(value).__qualname__}" if "\n" in text else text[:200]
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def full_path(file: str | None, own: str | None) -> str | None:
    """The whole path of a file that torch shortened in a guard's comment: ``optim/adam.py``, ``b.py``.

    ``own`` is the compiled code's file, the likeliest (torch may have cut it in the middle of a name). An
    unknown or ambiguous tail stays as it is.
    """
    if file is None or os.path.isabs(file):
        return file
    if own is not None and own.endswith(file):
        return own
    inside = _torch_file(file)
    if inside is not None:
        return inside
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    found = [f for f in files if f.endswith(file)]
    return found[0] if len(found) == 1 else file


def _torch_file(file: str) -> str | None:
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), file)
    return path if os.path.exists(path) else None


def _size(n: Any) -> int | str:
    """A size as int; a nested tensor's ragged size has none."""
    try:
        return int(n)
    except (TypeError, ValueError, RuntimeError):
        return str(n)
