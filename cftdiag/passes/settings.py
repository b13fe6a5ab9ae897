"""The process that a pass runs in: its environment, its threads and torch's settings, put back afterwards."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cftdiag.error_text import one_line
from cftdiag.errors import InputError


@contextlib.contextmanager
def process_kept(env: Mapping[str, str]) -> Iterator[None]:
    """One thread and the wanted environment; afterwards as before, for a check in the caller's own process."""
    threads, before = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(1)
    os.environ.update({name: str(value) for name, value in env.items()})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def torch_config(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set dotted torch config names, restored afterwards; raises :class:`InputError` for one that this torch
    lacks.
    """
    with contextlib.ExitStack() as stack:
        for dotted, value in settings.items():
            module_name, name = _split_config(dotted)
            try:
                module = importlib.import_module(module_name)
                if isinstance(getattr(module, name), (set, frozenset)):
                    value = set(getattr(module, name)) | {_resolved(value)}
                stack.enter_context(module.patch(**{name: value}))
            except (ImportError, AttributeError, TypeError) as error:
                raise InputError(
                    f"this torch has no setting {dotted}, or not this value for it ({one_line(error)})"
                ) from error
        yield


def _split_config(dotted: str) -> tuple[str, str]:
    for middle in (".config.", "._config."):
        head, marker, tail = dotted.partition(middle)
        if marker and head.startswith("torch"):
            return head + middle.rstrip("."), tail
    raise InputError(
        f"{dotted!r} is no torch setting; write torch._dynamo.config.NAME or torch._inductor.config.NAME"
    )


def _resolved(name: Any) -> Any:
    """The object of a dotted name (``logging.Logger.warning``), for settings that are sets of functions;
    anything else as it is.
    """
    if not isinstance(name, str):
        return name
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ImportError):
            found: Any = importlib.import_module(".".join(parts[:cut]))
            for part in parts[cut:]:
                found = getattr(found, part)
            return found
    return name
