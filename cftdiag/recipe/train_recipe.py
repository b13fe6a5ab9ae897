"""What a recipe is made of: compile scope, activation checkpointing, loss and sharding. Torch-free."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cftdiag.options import AC_MODES, SCOPES

if TYPE_CHECKING:
    from cftdiag.recipe.loss import RowLoss

#: The regions of each scope. A region is compiled as one: it is one graph, or graph breaks.
REGIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "block": ("block",),
    "loss": ("loss",),
    "block+loss": ("block", "loss"),
    "model": ("model",),
    "model+loss": ("model+loss",),
}
DEFAULT_LOSS_CHUNKS = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecipe:
    """How a plain model becomes the program that trains. Raises ``ValueError`` for an unknown word."""

    scope: str = "block"
    """What is compiled, one of ``SCOPES``."""
    ac: str = "none"
    """Activation checkpointing of each block, one of ``AC_MODES``."""
    loss_chunks: int | None = DEFAULT_LOSS_CHUNKS
    """lm_head and cross entropy run on this many parts of a row; None: the model's own forward is trained."""
    loss: RowLoss | None = None
    """What is made of a row's logits; None: summed cross entropy."""
    dtype: str | None = None
    """Name of the dtype of forward and backward under FSDP2; None: the parameters' own."""
    replicas: int = 1
    """HSDP: copies of the model; each is sharded over world size / replicas ranks."""
    tensor_parallel: int = 1
    """Ranks that the weights of each block are split over."""
    always_sharded: bool = False
    """FSDP2 on a single rank too, as the trainer has it."""

    def __post_init__(self) -> None:
        for name, value, known in (("ac", self.ac, AC_MODES), ("compile scope", self.scope, SCOPES)):
            if value not in known:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}")

        if self.tensor_parallel > 1 and self.ac != "none" and "block" in self.regions:
            # AOTAutograd (torch 2.13) then saves the mesh of a DTensor for backward among tensors, and raises.
            raise ValueError(
                f"activation checkpointing {self.ac} inside of a compiled block does not go with --tensor-parallel in torch; "
                "leave out --ac, or compile no blocks"
            )
        if self.tensor_parallel > 1 and self.whole_model:
            raise ValueError(
                f"--tensor-parallel splits blocks that are compiled one by one; compile scope {self.scope!r} has one region "
                "over all of them"
            )

    @property
    def regions(self) -> tuple[str, ...]:
        """``block``, ``loss``, ``model`` or ``model+loss``: the regions that the scope compiles."""
        return REGIONS[self.scope]

    @property
    def whole_model(self) -> bool:
        """True when one region spans all blocks."""
        return any(region.startswith("model") for region in self.regions)
