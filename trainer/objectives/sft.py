"""Supervised fine-tuning: cross entropy over the labelled tokens. Pre-training is the same over all tokens of texts."""

from __future__ import annotations

from cftdiag.recipe.loss import RowLoss
from cftdiag.recipe.packing import Step
from trainer.config import TrainConfig
from trainer.objectives.objective import Objective


class SupervisedFineTuning(Objective):
    """The loss is the mean over the loss tokens of the global batch."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.loss = RowLoss()

    def divisor(self, step: Step) -> int:
        return step.loss_tokens
