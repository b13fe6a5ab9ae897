"""Counting optimizer steps without being told: torch's global hook after ``Optimizer.step``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class StepClock:
    """Finds the border between two training steps.

    A step ends when an optimizer steps that has stepped already since the last border; several optimizers
    that step in turn (one for matrices, one for the rest) make one step, and an optimizer that replaces a
    dead one starts the next. The first step ends with the first call.
    """

    def __init__(self) -> None:
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._alone: weakref.ref[Any] | None = None
        """The only optimizer of the step that has ended last: the common case, answered without looking at
        the set.
        """

    def stepped(self, optimizer: Any) -> bool:
        """True when this call of ``optimizer.step`` ends a step."""
        alone = self._alone
        if alone is not None and alone() is optimizer:
            return True
        self._alone = None
        if len(self._stepped) > 0 and optimizer not in self._stepped:
            self._stepped.add(optimizer)
            return False
        several = len(self._stepped) > 1
        self._stepped = weakref.WeakSet((optimizer,))
        # With several in turn the next one must be seen as belonging to this step.
        self._alone = None if several else weakref.ref(optimizer)
        return True


def on_optimizer_step(callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``callback(optimizer)`` after each ``Optimizer.step`` of this process; returns a function that
    ends it.

    Under ``torch.compile`` the hook is traced: it does nothing there rather than leave its state in the
    user's graph, so steps of a compiled ``optimizer.step`` are not seen.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    compiling = torch.compiler.is_compiling

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling():
            callback(optimizer)

    return register_optimizer_step_post_hook(hook).remove
