"""What an objective has to say."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from torch import Tensor

from cftdiag.recipe.loss import RowLoss
from cftdiag.recipe.packing import Row, Step
from trainer.batch import Batch, Samples, collate, rank_batches
from trainer.config import TrainConfig


class Objective(abc.ABC):
    """One way to learn from rows. Another is a file with a subclass, and a name in
    :data:`trainer.config.OBJECTIVES` and in :mod:`trainer.objectives`.
    """

    loss: RowLoss
    """What is made of a row's logits, in parts that are compiled alone or with the model."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    @abc.abstractmethod
    def divisor(self, step: Step) -> int:
        """What the summed loss of a global batch is divided by: that of all ranks and microsteps."""

    def collate(self, row: Row, samples: Samples, *, pad_id: int, varlen: bool) -> Batch:
        """The tensors of one forward: those of :func:`trainer.batch.collate`, and what the loss takes beside
        them.
        """
        return collate(row, samples, pad_id=pad_id, varlen=varlen)

    def batches(
        self,
        steps: Sequence[Step],
        samples: Samples,
        *,
        rank: int,
        pad_id: int,
        varlen: bool,
        workers: int = 0,
        pin: bool = False,
    ) -> Iterator[tuple[Step, list[Batch]]]:
        """Each step with this rank's batches, one a microstep, when the loop asks for it."""
        return rank_batches(
            steps, samples, rank=rank, pad_id=pad_id, varlen=varlen, workers=workers, pin=pin,
            collate=self.collate,
        )  # fmt: skip


def split(out: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The loss that a program's model returned, and the row's figures where its objective has some."""
    return out if isinstance(out, tuple) else (out, None)
