"""A fine-tuner for causal language models: FSDP2, per-block torch.compile, and OSFT, LoRA or full training.

``torchrun --nproc-per-node 2 -m trainer --demo --osft --compile-model --max-steps 20 --output-dir OUT`` runs
it; from Python it is ``trainer.run_training(trainer.TrainConfig(...))`` in every rank. Importing the package
does not import torch: :mod:`trainer.config`,
:mod:`trainer.records` and :mod:`cftdiag.recipe.packing` say what would be trained on without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig

if TYPE_CHECKING:
    from trainer.loop import RunResult

__all__ = ["TrainConfig", "run_training"]


def run_training(args: TrainConfig | dict[str, Any]) -> RunResult:
    """Train as ``args`` says; call it on every rank (see :func:`trainer.loop.run`).

    ``args`` is a :class:`TrainConfig` or a dict with the names of its fields. Raises ``ValueError`` for a
    user's mistake.
    """
    from trainer.loop import run

    return run(args if isinstance(args, TrainConfig) else TrainConfig.from_mapping(args))
