"""Preference optimization over pairs of answers: DPO (arXiv 2305.18290), IPO (2310.12036) and ORPO (2403.07691).

A pair is one sample of two documents, the chosen answer and the rejected one, each after the prompt; both are in
the same packed row. The log-probabilities of the tokens are made by chunks of the row; what is left of the loss
works on vectors of the row's length.

The reference is the policy as it was before the first step, for every method. Its log-probabilities are made once,
before that step, by the very program that is then trained, run eager, and go into every checkpoint: two numbers a
pair. So there is no second model in memory, none whose blocks share code with the policy's and fight for its
graphs, no adapter that is switched off and on, and a resumed run has the same numbers to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from cftdiag.recipe.loss import LossRegion, RowLoss, TokenLogProbs
from cftdiag.recipe.packing import IGNORE, Row, Step, epoch_steps
from trainer.batch import Batch, Samples
from trainer.config import TrainConfig
from trainer.data import Data, shape_of
from trainer.objectives.objective import Objective, documents_of

FIGURES = ("accuracy", "margin", "chosen_reward", "rejected_reward")
REFERENCE = "reference.pt"
"""In the directory of a checkpoint."""


class DPO(Objective):
    """The loss is the mean over the pairs of the global batch. A reward is how far the policy has moved towards an
    answer, ``margin`` how much more so towards the chosen one, ``accuracy`` the share of pairs where it has.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.pairs = config.batch_size
        """Room for so many in a row: the same in every row, so that their number is no size of a graph."""
        self.loss = RowLoss(
            chunk=TokenLogProbs(),
            finish=PairLoss(config.dpo_loss, beta=config.dpo_beta, pairs=self.pairs),
            per_row=("documents", "lengths", "reference", "present"),
            figures=FIGURES,
            weight=_pairs_of,
            name="log_probs",
        )
        self._reference: dict[str, Tensor] = {}
        """Pairs x 2 (chosen, rejected) in float64, by the digest of the set of samples."""

    def divisor(self, step: Step) -> int:
        return step.samples

    def extend(self, batch: Batch) -> Batch:
        documents = documents_of(batch["position_ids"]).clamp(max=2 * self.pairs - 1)
        learnt = (batch["labels"] != IGNORE).double()
        lengths = sum_by_document(learnt, documents, 2 * self.pairs).view(-1, 2)
        present = (lengths > 0).all(1).double()
        own = {
            "documents": documents,
            "lengths": lengths,
            "reference": torch.zeros_like(lengths),
            "present": present,
        }
        return {**batch, **own}

    def collate(self, row: Row, samples: Samples, *, pad_id: int, varlen: bool) -> Batch:
        batch = super().collate(row, samples, pad_id=pad_id, varlen=varlen)
        known = self._reference.get(getattr(samples, "digest", ""))
        if known is not None and row.samples:
            batch["reference"][: len(row.samples)] = known[list(row.samples)]
        return batch

    # ---- the reference ----

    def steps_ahead(self, data: Data, world: int) -> list[tuple[Samples, Step]]:
        """All pairs of both sets, once; none for ORPO, which has no reference."""
        if self.config.dpo_loss == "orpo":
            return []
        config = self.config
        train = epoch_steps(
            data.train.samples,
            shape_of(config, world),
            batch_size=config.batch_size,
            seed=config.seed,
            epoch=0,
        )
        found: list[tuple[Samples, Step]] = [(data.train, step) for step in train]
        if data.validation is not None:
            found += [(data.validation, step) for step in data.validation_steps]
        return found

    def note_ahead(
        self, samples: Samples, rows: Sequence[Row], batches: Sequence[Batch], values: Sequence[Tensor]
    ) -> None:
        known = self._reference.setdefault(
            getattr(samples, "digest", ""), torch.zeros(len(samples.samples), 2, dtype=torch.float64)
        )
        for row, batch, value in zip(rows, batches, values, strict=True):
            sums = sum_by_document(value.double().cpu(), batch["documents"], 2 * self.pairs).view(-1, 2)
            known[list(row.samples)] = sums[: len(row.samples)]

    def share_ahead(self, device: torch.device, *, same_rows: int) -> None:
        for digest, own in self._reference.items():
            everyone = own.to(device)
            dist.all_reduce(everyone)
            self._reference[digest] = (everyone / same_rows).cpu()

    def write(self, directory: Path) -> None:
        if self._reference:
            torch.save(self._reference, directory / REFERENCE)

    def read(self, directory: Path, data: Data) -> None:
        if self.config.dpo_loss == "orpo":
            return
        try:
            self._reference = torch.load(directory / REFERENCE, weights_only=True)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{directory} has no log-probabilities of the reference ({error})") from error
        for name, samples in (("data", data.train), ("validation set", data.validation)):
            if samples is not None and samples.digest not in self._reference:
                raise ValueError(
                    f"the checkpoint has no log-probabilities of the reference for this {name}, and its policy is no "
                    "longer the reference; give the one that it had"
                )


class PairLoss(LossRegion):
    """From the log-probabilities of a row's tokens to the summed loss of its pairs and their figures."""

    def __init__(self, kind: str, *, beta: float, pairs: int) -> None:
        super().__init__()
        self.kind, self.beta, self.pairs = kind, beta, pairs

    def forward(
        self, values: Tensor, documents: Tensor, lengths: Tensor, reference: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``values`` and ``documents`` B x S; ``lengths`` (answer tokens) and ``reference`` pairs x 2, chosen and
        rejected; ``present`` pairs, 1 where there is one.
        """
        sums = sum_by_document(values, documents, 2 * self.pairs).view(-1, 2)
        present = present.to(sums.dtype)
        lengths = lengths.to(sums.dtype).clamp(min=1)
        if self.kind == "orpo":
            # A pair that is not there gets a probability that is none of 0 and 1: its part is multiplied by zero.
            mean = torch.where(present[:, None] > 0, sums / lengths, -1.0)
            odds = mean - _log1mexp(mean)
            losses = -mean[:, 0] - self.beta * F.logsigmoid(odds[:, 0] - odds[:, 1])
            rewards = self.beta * mean
        else:
            moved = sums - reference.to(sums.dtype)
            rewards = self.beta * moved
            if self.kind == "ipo":
                mean = moved / lengths
                losses = (mean[:, 0] - mean[:, 1] - 1 / (2 * self.beta)) ** 2
            else:
                losses = -F.logsigmoid(rewards[:, 0] - rewards[:, 1])
        chosen, rejected = rewards.detach().unbind(1)
        figures = torch.stack([(chosen > rejected).to(sums.dtype), chosen - rejected, chosen, rejected])
        return (losses * present).sum(), (figures * present).sum(1)


def sum_by_document(values: Tensor, documents: Tensor, count: int) -> Tensor:
    """Sums of ``values`` over the positions of each of ``count`` documents. In one order on every device, which
    atomic additions have not.
    """
    each = torch.arange(count, device=values.device)[:, None]
    return torch.where(documents.flatten() == each, values.flatten(), 0.0).sum(1)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, exact at both ends (Maechler 2012)."""
    near = x > -0.6931471805599453
    return torch.where(
        near,
        torch.log(-torch.expm1(torch.where(near, x, -1.0))),
        torch.log1p(-torch.exp(torch.where(near, -1.0, x))),
    )


def _pairs_of(batch: Mapping[str, Tensor]) -> Tensor:
    return batch["present"].sum()
