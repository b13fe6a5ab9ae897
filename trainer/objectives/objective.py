"""What an objective has to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cftdiag.recipe.loss import RowLoss
from cftdiag.recipe.packing import Row, Step
from trainer.batch import Batch, Samples, collate, rank_batches
from trainer.config import TrainConfig
from trainer.data import Data


class Objective:
    """One way to learn from rows. Another is a file with a subclass, and a name in
    :data:`cftdiag.options.OBJECTIVES` and in :mod:`trainer.objectives`.
    """

    loss: RowLoss
    """What is made of a row's logits, in parts that are compiled alone or with the model."""

    makes_rows = False
    """Rows are made step by step and cannot be known before."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def require(self, *, world: int, attn: str, tokenizer: Any) -> None:
        """Raise ``ValueError`` where this cannot be trained on so many ranks, with this attention or tokenizer."""

    def open(self) -> None:
        """Load what training needs beside model and data, and a check does not. Raises ``ValueError``."""

    @property
    def needs_the_start(self) -> bool:
        """The weights that training began with are needed in every start of a run."""
        return False

    def begin(self, program: Any) -> None:
        """Take what is needed of the program (:class:`trainer.program.Program`) with the weights that training
        begins with.
        """

    def divisor(self, step: Step) -> int:
        """What the summed loss of a global batch is divided by: that of all ranks and microsteps."""
        raise NotImplementedError

    def extend(self, batch: Batch) -> Batch:
        """A packed row with what the loss takes beside its labels. Of the row no more is known than its tensors: it
        may be one that a check or a plan made up.
        """
        return batch

    def collate(self, row: Row, samples: Samples, *, pad_id: int, varlen: bool) -> Batch:
        """The tensors of one forward: those of :func:`trainer.batch.collate`, extended."""
        return self.extend(collate(row, samples, pad_id=pad_id, varlen=varlen))

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

    def batches_of(self, lengths: Sequence[int], *, pad_id: int, varlen: bool) -> list[Batch]:
        """Made-up rows of these lengths, where the objective makes its rows itself."""
        raise NotImplementedError

    def rows_ahead(self, data: Data) -> tuple[Samples, list[Step]]:
        """The rows of the run, or what can be known of them, and what they index."""
        return data.train, data.steps

    def current(self, samples: Samples) -> Samples:
        """What the rows of the step that was taken last index; ``samples`` are the data's."""
        return samples

    def take_figures(self) -> dict[str, float]:
        """What else ``metrics.jsonl`` gets of the steps since the last call."""
        return {}

    def badness(self, validated: Mapping[str, float]) -> float:
        """What a validation found, as a number of which the lowest is the best."""
        return validated["val_loss"]

    # ---- what must be known of the policy before its first step ----

    def steps_ahead(self, data: Data, world: int) -> list[tuple[Samples, Step]]:
        """Steps that are run without gradients before the first one, and of which samples."""
        return []

    def note_ahead(
        self, samples: Samples, rows: Sequence[Row], batches: Sequence[Batch], values: Sequence[Tensor]
    ) -> None:
        """Take from one such step what is needed: this rank's rows, their batches, and the values of the loss's
        chunks, B x S.
        """

    def share_ahead(self, device: torch.device, *, same_rows: int) -> None:
        """After the last of them; so many ranks in a row had the same rows. Collective."""

    def state(self) -> dict[str, Any] | None:
        """What of this moment the next step needs, beside weights and data; JSON-ready. Every checkpoint has it."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None:
        """Take what :meth:`state` gave."""

    def write(self, directory: Path) -> None:
        """Put what was taken into ``directory``, of which every checkpoint gets a copy."""

    def read(self, directory: Path, data: Data) -> None:
        """Take it from a checkpoint. Raises ``ValueError`` where it does not fit ``data``."""


def split(out: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
    """The loss that a program's model returned, and the row's figures where its objective has some."""
    return (out[0], out[1]) if isinstance(out, tuple) else (out, None)


def documents_of(position_ids: Tensor) -> Tensor:
    """The number of its document for each position: a document begins where positions restart; int64, as
    ``position_ids``.
    """
    return ((position_ids == 0).flatten().cumsum(0) - 1).view(position_ids.shape)
