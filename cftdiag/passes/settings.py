"""The process that a pass runs in: its environment and its threads, put back afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import torch


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
