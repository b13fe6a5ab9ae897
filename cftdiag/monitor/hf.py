"""The monitor as a callback of transformers' Trainer, and so of TRL's trainers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from cftdiag.monitor.monitor import Monitor


class MonitorCallback(TrainerCallback):
    """``Trainer(..., callbacks=[MonitorCallback(run_dir="runs/1")])``; options as of
    :class:`cftdiag.Monitor`.

    Runs from the training's begin to its end; the optimizer's steps are counted by the monitor itself, so
    gradient accumulation needs no setting.
    """

    def __init__(self, **options: Any) -> None:
        self.monitor = Monitor(**options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching. The model has been compiled and wrapped by now, under names that the first compile
        shows.
        """
        self.monitor.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching and close the run directory."""
        self.monitor.close()
