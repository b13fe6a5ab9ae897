"""What a method answers. The answers of this class are those of a method that leaves the model as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.osft.surgery import Target
from trainer.weights import Filler, plain_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What may be known when the plain model is changed."""

    ranks: Mapping[str, int] | None = None
    """Frozen directions of each OSFT target, from a checkpoint."""
    plain: nn.Module | None = None
    """The model with its weights, on rank 0."""
    calibration: Callable[[], list[dict[str, Any]]] | None = None
    """Batches to measure layers on; their use is collective."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """Tensors of a trained model, by name."""

    keys: Collection[str]
    read: Callable[[list[str]], dict[str, Tensor]]
    """Whole values of some of them."""

    def some(self, parent: str, children: Iterable[str]) -> dict[str, Tensor]:
        """Those of a module, by their names in it."""
        names = {f"{parent}.{child}": child for child in children}
        return {names[name]: value for name, value in self.read(list(names)).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """A second export."""

    name: str
    """Of its directory in the run's, and of the flag of ``python -m trainer.export``."""
    write: Callable[[Path, Path], None]
    """Writes it into the second directory, which is empty; the first is the exported plain model's."""


class Method:
    """One way to train a model, with the options of a run."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def change(self, model: nn.Module, known: Known) -> tuple[Target, ...]:
        """Turn a plain model, on meta as a rule, into the one that is trained, in place and without values;
        returns OSFT's targets. Raises ``ValueError`` for a model that the method does not take.
        """
        return ()

    def fill(self, filler: Filler, values: Mapping[str, Tensor], targets: tuple[Target, ...]) -> None:
        """Set every parameter and buffer of the changed model from the plain one's ``values``, which rank 0
        has. Collective.
        """
        for name in plain_names(filler.model):
            filler.fill(name, values.get(name))

    def dense(self, name: str, plain: nn.Module, trained: Trained) -> Tensor:
        """The whole value of the ``plain`` model's tensor ``name`` that the trained ones stand for."""
        return trained.read([name])[name]

    def beside(self, trained: Trained) -> Beside | None:
        """What is exported beside the plain model, if anything. Reads what it needs, which is collective."""
        return None

    def lines(self, model: nn.Module, blocks: Iterable[str], targets: tuple[Target, ...]) -> list[str]:
        """What to say of the changed model before training."""
        return []


def first_like_the_others(model: nn.Module, config: TrainConfig) -> None:
    """Where embeddings are frozen, the first block's input would be the only one without a gradient: another
    graph, for a block like all others.
    """
    if "block" in config.scope:
        model.get_input_embeddings().register_forward_hook(
            lambda _module, _args, output: output.requires_grad_(torch.is_grad_enabled())
        )
