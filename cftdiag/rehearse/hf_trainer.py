"""The transformers Trainer (and TRL's): one evaluation within the rehearsed steps, of a few batches."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.settings import Rehearsal

if TYPE_CHECKING:
    from cftdiag.rehearse.backend import Compiled
    from cftdiag.rehearse.coverage import Counter

#: Batches of one evaluation: the shapes repeat, and their arithmetic is skipped.
BATCHES = 8


def install(settings: Rehearsal, compiled: Compiled, counter: Counter) -> None:
    """Wait for transformers' Trainer."""
    after_import("transformers.trainer", functools.partial(_extend, settings, compiled, counter))


def _extend(settings: Rehearsal, compiled: Compiled, counter: Counter, module: ModuleType) -> None:
    trainer, base = module.Trainer, module.TrainerCallback
    real_init, real_loop = trainer.__init__, trainer.evaluation_loop

    class EvaluateOnce(base):  # type: ignore[misc,valid-type]
        """Asks for an evaluation ahead of the last rehearsed step where the script has made none."""

        def __init__(self, evaluates: bool) -> None:
            self._evaluates = evaluates

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            due = min(settings.steps, state.max_steps or settings.steps) - 1
            if self._evaluates and not compiled.evaluated and state.global_step >= due:
                control.should_evaluate = True
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            compiled.finished = state.global_step >= state.max_steps

    @functools.wraps(real_init)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        self.add_callback(EvaluateOnce(getattr(self, "eval_dataset", None) is not None))

    @functools.wraps(real_loop)
    def evaluation_loop(self: Any, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        before, compiled.evaluated = compiled.evaluated, False
        counter.paused = True
        try:
            return real_loop(self, _Few(dataloader), *args, **kwargs)
        finally:
            counter.paused = False
            if not compiled.evaluated and not before:
                compiled.note(
                    "the evaluation met no compiled module: Trainer evaluates the model that it was given, eager"
                )
            compiled.evaluated = True

    trainer.__init__ = initialise
    trainer.evaluation_loop = evaluation_loop


class _Few:
    """The first batches of a data loader, which it is in every other respect."""

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataloader, name)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._dataloader), BATCHES)

    def __len__(self) -> int:
        return min(len(self._dataloader), BATCHES)
