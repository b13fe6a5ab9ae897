"""Losses, norms and metrics that nobody computed: what a script is told, and what must not be decided by them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from cftdiag.rehearse.import_hooks import after_import


def plausible(step: int) -> float:
    """A value after so many optimizer steps: finite, below one, and falling slowly; the same for as long as the
    same tensor can be read again.
    """
    return 0.99 * 0.995**step


class Stops:
    """Stops that libraries would have made by a metric, and did not."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self._first: dict[str, int] = {}

    def kept_from(self, name: str) -> None:
        """One stop that was not made."""
        self._first.setdefault(name, self._steps())

    def notes(self) -> Iterator[str]:
        """What the report says of them."""
        for name, step in self._first.items():
            yield f"{name} would have stopped the training after step {step} by a metric that is not computed; it was not let"


def install(steps: Callable[[], int]) -> Stops:
    """Keep the libraries' own early stopping from stopping; ``steps`` counts optimizer steps."""
    stops = Stops(steps)
    after_import("transformers.trainer_callback", functools.partial(_transformers, stops))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        after_import(f"{package}.callbacks.early_stopping", functools.partial(_lightning, stops))
    return stops


def _transformers(stops: Stops, module: ModuleType) -> None:
    real = module.EarlyStoppingCallback.on_evaluate

    @functools.wraps(real)
    def on_evaluate(self: Any, args: Any, state: Any, control: Any, *more: Any, **kwargs: Any) -> Any:
        before = control.should_training_stop
        real(self, args, state, control, *more, **kwargs)
        if control.should_training_stop and not before:
            control.should_training_stop = False
            self.early_stopping_patience_counter = 0
            stops.kept_from("EarlyStoppingCallback")

    module.EarlyStoppingCallback.on_evaluate = on_evaluate


def _lightning(stops: Stops, module: ModuleType) -> None:
    cls = module.EarlyStopping

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def hook(self: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
            before = trainer.should_stop
            real(self, trainer, *args, **kwargs)
            if trainer.should_stop and not before:
                trainer.should_stop = False
                self.wait_count = 0
                stops.kept_from("EarlyStopping")

        return hook

    cls.on_validation_end = guarded(cls.on_validation_end)
    cls.on_train_epoch_end = guarded(cls.on_train_epoch_end)
