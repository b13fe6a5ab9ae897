"""One optimizer step: microsteps, projection, clipping, AdamW, projection. Nothing waits for the device but
one read before the optimizer, which is not run on a loss or a gradient that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from trainer.batch import Batch, to_device
from trainer.config import TrainConfig
from trainer.nonfinite import locate
from trainer.objectives.objective import split
from trainer.optim import clip, gradient_norm
from trainer.osft.frozen import Frozen
from trainer.osft.leak import leak as measure_leak
from trainer.osft.projection import project_gradients, project_parameters
from trainer.program import Program


class Stepper:
    """Takes steps on a program."""

    def __init__(self, program: Program, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
        self.stop: Callable[[], bool] = lambda: False
        """Says whether this rank wants to end after the step; when one does, all learn of it."""
        self._model = program.model
        self._figures = program.objective.loss.figures
        self._device = program.device
        self._same_rows = config.tensor_parallel
        self._optimizer = optimizer
        self._max_norm = config.max_grad_norm
        self._sync_last, self._syncing = config.grad_sync == "last", True
        self._trained = [p for p in program.model.parameters() if p.requires_grad]
        self._frozen = Frozen.of(program.model, cap_bytes=config.osft_transient_mb * 2**20)

    def step(self, batches: list[Batch], divisor: int, *, lr: float, leak: bool = False) -> dict[str, Any]:
        """Train on one global batch, of which ``batches`` are this rank's microsteps; the loss summed over
        all ranks is divided by ``divisor`` (:meth:`trainer.objectives.Objective.divisor`). Collective.

        Returns ``loss`` and the objective's figures (means over the global batch), ``grad_norm_raw`` (before projection),
        ``grad_norm`` (after it, before clipping), ``leak`` (None unless asked for) and ``stop`` (whether a
        rank asked to end after this step). Where the loss or a norm is not finite the optimizer is not run,
        and ``nonfinite`` says what is known of the reason (:class:`trainer.nonfinite.Nonfinite`), else None.
        """
        losses = []
        total = torch.zeros(1 + len(self._figures), dtype=torch.float64, device=self._device)
        for i, batch in enumerate(batches, 1):
            self._sync_gradients(last=i == len(batches))
            loss, figures = split(self._model(**to_device(batch, self._device)))
            (loss / divisor).backward()
            total += _row(loss, figures)
            losses.append(loss.detach())
        # The wish to stop travels with the loss: all ranks agree on the step, and none waits for it.
        shared = torch.cat([total, total.new_full((1,), float(self.stop()))])
        dist.all_reduce(shared)
        shared[:-1] /= self._same_rows

        raw = gradient_norm(self._trained)
        norm = raw
        if self._frozen is not None:
            project_gradients(self._frozen)
            norm = gradient_norm(self._trained)
        # The only host sync of a step. It comes before the optimizer: clipping by an infinite norm would turn
        # every gradient, and with it every weight, into NaN. All ranks read the same sums.
        means = shared[:-1] / divisor
        mean, *own, wish, raw_value, norm_value = torch.cat(
            [means, shared[-1:], raw.to(means.dtype).view(1), norm.to(means.dtype).view(1)]
        ).tolist()
        found: dict[str, Any] = {
            "loss": mean, "grad_norm_raw": raw_value, "grad_norm": norm_value, "leak": None,
            **dict(zip(self._figures, own, strict=True)),
        }  # fmt: skip
        if not (math.isfinite(mean) and math.isfinite(raw_value) and math.isfinite(norm_value)):
            culprit = locate(self._model, losses)
            self._optimizer.zero_grad(set_to_none=True)
            return {**found, "stop": wish > 0, "nonfinite": culprit}

        if self._max_norm > 0:
            clip(self._trained, norm, self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._frozen is not None:
            project_parameters(self._frozen)
            if leak:
                found["leak"] = measure_leak(self._frozen).item()
        return {**found, "stop": wish > 0, "nonfinite": None}

    def _sync_gradients(self, *, last: bool) -> None:
        """What the next backward does with its gradients between the ranks.

        Replicas (HSDP) exchange theirs after the last microstep alone: shards of sums take no more memory than
        shards. Shards are reduced after every one unless asked otherwise, for whole gradients would have to
        stay on every rank until then.
        """
        if self._syncing == last or not isinstance(self._model, FSDPModule):
            return
        self._syncing = last
        self._model.set_requires_gradient_sync(last or not self._sync_last)
        self._model.set_requires_all_reduce(last)  # after the other, which sets it, too
        self._model.set_is_last_backward(last)

    def forward_backward(self, batches: list[Batch]) -> None:
        """Run what a step runs on the model, and leave no gradient behind: for its compiles. Collective."""
        for batch in batches:
            split(self._model(**to_device(batch, self._device)))[0].backward()
        self._model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def values(self, batches: list[Batch]) -> list[Tensor]:
        """What the chunks of the loss are on each of this rank's batches, B x S (of an objective that has a loss
        of the whole row). Collective.
        """
        return [self._model(**to_device(batch, self._device))[2] for batch in batches]

    @torch.no_grad()
    def evaluate(self, batches: list[Batch]) -> Tensor:
        """Sums over this rank's batches on the device: of the loss, then of the objective's figures."""
        rows = [_row(*split(self._model(**to_device(batch, self._device)))) for batch in batches]
        return torch.stack(rows).sum(0)


def _row(loss: Tensor, figures: Tensor | None) -> Tensor:
    """A row's sums: the loss and its figures, in float64."""
    first = loss.detach().double().view(1)
    return first if figures is None else torch.cat([first, figures.detach().double()])
