"""``--profile-steps a-b``: what these steps did, as a trace that Perfetto (ui.perfetto.dev) and
chrome://tracing open, one file a rank.

Each block's call, and that of a compiled loss or model, is a range of its own name. The range is put around the
compiled call from outside: a module hook would become part of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from cftdiag.capture import surround
from trainer.config import profile_range


class Profiling:
    """Profiles a range of optimizer steps; does nothing where none was asked for."""

    def __init__(self, steps: str | None, directory: Path, *, rank: int, say: Callable[[str], None]) -> None:
        """``steps`` is ``a-b`` (both included, 1-based), or None."""
        self._steps = range(0) if steps is None else profile_range(steps)
        self.path = directory / f"rank{rank:05d}.steps{steps}.json"
        self._say = say
        self._profiler: Any = None

    def name_calls(self, calls: Mapping[str, nn.Module]) -> None:
        """Give each call of these modules a range of its name, while a profile is taken."""
        for name, module in calls.items() if self._steps else ():
            surround(module, partial(self._range, name))

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around one optimizer step."""
        if step not in self._steps:
            yield
            return
        if self._profiler is None:
            self._start()
        with record_function(f"step {step}"):
            yield
        if step == self._steps[-1]:
            self.close()

    def __enter__(self) -> Profiling:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the trace, also when training ended before the last step of the range."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.path))
        self._say(f"profile {self.path}")

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profiler = profile(activities=activities)
        self._profiler.start()

    def _range(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._profiler is None else record_function(name)
