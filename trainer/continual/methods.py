"""The methods that are compared, and the trainer's options of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.batch import Batch
from trainer.config import TrainConfig
from trainer.methods.lora import adapted_layers
from trainer.osft.frozen import local

FORMS = "full, replay, osft SHARE, osft progressive, lora RANK, olora RANK, gpm RANK"
"""``osft`` takes ``beside=all|blocks|none``, ``gpm`` ``keep=SHARE``, all take ``lr=RATE``."""

METHODS = (
    "full", "full lr=2.5e-4", "osft 0.25", "osft 0.25 lr=4e-3", "osft 0.25 beside=blocks lr=4e-3",
    "osft 0.25 beside=none lr=4e-3", "osft 0.25 beside=none lr=1e-2", "osft 0.05 beside=none lr=1e-2",
    "osft progressive lr=4e-3", "osft progressive beside=none lr=4e-3", "lora 8 lr=4e-3", "olora 8 lr=4e-3", "gpm 8 lr=4e-3",
    "replay",
)  # fmt: skip
"""What is compared unless methods are named."""


_ADAPTERS = ("lora", "olora", "gpm")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One way to learn tasks in turn."""

    text: str
    """As it was given."""
    name: str
    value: str
    """The share, ``progressive`` or the rank; empty where there is none."""
    beside: str = "all"
    """Of OSFT: :attr:`trainer.TrainConfig.osft_beside`."""
    keep: float = 0.99
    """Of gpm: the share of the squares of a layer's inputs that adapters must not read."""
    lr: float | None = None
    """None for the rate of all methods."""

    def constraint(self) -> Orthogonal | None:
        """What is held in every step, over all tasks."""
        if self.name == "gpm":
            return OrthogonalToInputs(self.keep)
        return Orthogonal() if self.name == "olora" else None

    def options(self, number: int, count: int) -> dict[str, Any]:
        """The trainer's options for task ``number`` (from 1) of ``count``."""
        if self.name in _ADAPTERS:
            return {"lora": True, "lora_rank": int(self.value), "lora_alpha": 2.0 * int(self.value)}
        if self.name != "osft":
            return {}
        if self.value == "progressive":
            share: dict[str, Any] = {"osft_task": f"{number}/{count}"}
        else:
            share = {"osft_unfreeze_rank_ratio": float(self.value)}
        return {"osft": True, "osft_beside": self.beside, **share}


def parse(text: str) -> Method:
    """Raises ``ValueError`` for what is no method."""
    words = text.split()
    plain = [word for word in words if "=" not in word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    name, value = (*plain, "", "")[:2]
    try:
        if len(plain) != (1 if name in ("full", "replay") else 2) or pairs.keys() - {"beside", "lr", "keep"}:
            raise ValueError("it has another form")
        if "beside" in pairs and name != "osft":
            raise ValueError("only osft has something beside")
        if "keep" in pairs and name != "gpm":
            raise ValueError("only gpm keeps a share of the inputs")
        keep = float(pairs.get("keep", 0.99))
        if not 0 < keep < 1:
            raise ValueError("what is kept is a share between 0 and 1")
        rate = float(pairs["lr"]) if "lr" in pairs else None
        if rate is not None and not 0 < rate < math.inf:
            raise ValueError("a learning rate is positive")
        method = Method(
            text=text, name=name, value=value, beside=pairs.get("beside", "all"), keep=keep, lr=rate
        )
        if name not in ("full", "replay", "osft", *_ADAPTERS):
            raise ValueError("there is none of that name")
        TrainConfig(demo=True, **method.options(1, 1))
    except ValueError as error:
        raise ValueError(f"{text!r} is no method ({error}); one of {FORMS}, with lr=RATE") from error
    return method


class Orthogonal:
    """Adapters that read nothing of what earlier tasks' adapters read: A is kept orthogonal to the rows of all
    earlier ones (O-LoRA, arXiv 2310.14152, with the condition held exactly instead of by a penalty).
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}

    def begin(self, model: nn.Module, rows: Sequence[Batch]) -> None:
        """A task begins; ``rows`` are some of the task before it."""

    @torch.no_grad()
    def hold(self, model: nn.Module) -> None:
        """Project the adapters of a model; after each step, and before the first."""
        for name, layer in adapted_layers(model).items():
            if (rows := self._rows.get(name)) is not None:
                a = local(layer.A)
                a -= (a @ rows.T) @ rows

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Note what a task's adapters read, at its end."""
        for name, layer in adapted_layers(model).items():
            rows = local(layer.A)
            if name in self._rows:
                rows = torch.cat([self._rows[name], rows])
            self._rows[name] = torch.linalg.svd(rows, full_matrices=False).Vh[: len(rows)]


class OrthogonalToInputs(Orthogonal):
    """Adapters that read nothing of what earlier tasks put into their layers: A is kept orthogonal to the directions
    that hold nearly all of those inputs, layer by layer (gradient projection memory, arXiv 2103.09762, with
    adapters as in InfLoRA, arXiv 2404.00228).
    """

    def __init__(self, keep: float) -> None:
        """``keep`` is the share of the squares of the inputs that counts as what they are made of."""
        super().__init__()
        self._keep = keep

    @torch.no_grad()
    def begin(self, model: nn.Module, rows: Sequence[Batch]) -> None:
        """Note the inputs of the task before; the adapters change nothing yet."""
        squares: dict[str, Tensor] = {}

        def watch(name: str, layer: nn.Module) -> Any:
            def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                x = inputs[0].flatten(0, -2).double()
                squares[name] = squares.get(name, 0) + x.T @ x

            return layer.register_forward_pre_hook(note)

        watching = [watch(name, layer) for name, layer in adapted_layers(model).items()]
        model.eval()
        for row in rows:
            model(**row)
        model.train()
        for handle in watching:
            handle.remove()
        for name, square in squares.items():
            known = self._rows.get(name, square.new_zeros(0, len(square)).float())
            self._rows[name] = torch.cat([known, directions(square, known.double(), self._keep).float()])

    def add(self, model: nn.Module) -> None:
        """Nothing: inputs are noted before the next task."""


def directions(square: Tensor, known: Tensor, keep: float) -> Tensor:
    """Orthonormal rows that hold, with the orthonormal ``known``, the share ``keep`` of the squares of the inputs X;
    X^T X = ``square`` (n x n).
    """
    other = torch.eye(len(square), dtype=square.dtype) - known.T @ known
    values, vectors = torch.linalg.eigh(other @ square @ other)
    values, vectors = values.flip(0), vectors.flip(1)
    missing = keep * square.trace() - (square.trace() - values.sum())
    count = int((values.cumsum(0) - values < missing).sum())
    return vectors[:, :count].T
