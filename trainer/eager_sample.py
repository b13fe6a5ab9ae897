"""What compiling gains, measured in the run itself: some steps run eager after the warm-up, beside as many compiled.

A step's time is taken by token, for rows differ; steps that compiled or were skipped are left out, and of the eager
steps a first one that is not asked for: eager code, too, is slow the first time. On ranks that
train together all are eager in the same steps.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

#: Steps left out at the start: they compile, fill caches and autotune.
WARM_UP = 2


class EagerSample:
    """Chooses the eager steps and tells what was found. ``steps`` of 0 measures nothing."""

    def __init__(self, steps: int, *, first: int, compiled: bool, say: Callable[[str], None]) -> None:
        self._wanted, self._first, self._say = steps if compiled else 0, first, say
        self._compiled, self._told = compiled, False
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self._compile_seconds = 0.0
        self._lost = 0.0

    def is_eager(self, step: int) -> bool:
        """True for a step that runs without the compiled code."""
        after = step - self._first - WARM_UP - self._wanted
        return 0 <= after < self._wanted + bool(self._wanted)

    def stance(self, step: int) -> AbstractContextManager[Any]:
        """To run the step in."""
        return torch.compiler.set_stance("force_eager") if self.is_eager(step) else contextlib.nullcontext()

    def note(self, record: Mapping[str, Any]) -> None:
        """After a step."""
        if not self._compiled or self._told:
            return
        step = record["step"]
        self._compile_seconds += record["compile_seconds"]
        done = step - self._first + 1
        if not self._wanted:
            if done == WARM_UP:
                self._told = True
                self._say(
                    f"compiled in {self._compile_seconds:.1f} s; what it gains on this machine is not known "
                    "(--measure-eager 5 measures it)"
                )
            return
        clean = not record["graphs"] and not record.get("skipped") and record["tokens"]
        begins = self.is_eager(step) and not self.is_eager(step - 1)
        if done > WARM_UP and clean and not begins:
            self._seconds[self.is_eager(step)].append(record["seconds"] / record["tokens"])
        if done == WARM_UP + 2 * self._wanted + 1:
            self._told = True
            self._say(self._found(record["tokens"]))

    def _found(self, tokens: int) -> str:
        eager, compiled = self._seconds[True], self._seconds[False]
        if not eager or not compiled:
            return "what compiling gains was not measured: every step of the sample compiled or was skipped"
        slow, fast = statistics.median(eager), statistics.median(compiled)
        text = f"measured over {len(compiled)} compiled and {len(eager)} eager steps: compiling gains {slow / fast:.2f}x"
        saved = (slow - fast) * tokens
        if saved <= 0:
            return f"{text}: it costs time here; --no-compile-model trains without"
        steps = math.ceil(self._compile_seconds / saved)
        return f"{text}; {self._compile_seconds:.1f} s of compiling pay after {steps:,} steps"
