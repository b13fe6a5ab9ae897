"""What was counted of a model's training step, eager and compiled, for one batch. Torch-free."""

from __future__ import annotations

import dataclasses

from cftdiag.target.work import Work


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedAt:
    """Bytes that one part keeps from forward for backward at one shape."""

    batch_size: int
    length: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of block, the loss, or what is left of the step, forward and backward together."""

    name: str
    count: int
    """How often it is in the model."""
    eager: Work
    """Of one of them."""
    compiled: Work | None = None
    """Of one of them; None for what no region of its own covers."""
    saved_eager: tuple[SavedAt, ...] = ()
    saved_compiled: tuple[SavedAt, ...] = ()
    graphs: int = 0
    """Graphs that are compiled for it, forward and backward counted as one."""
    compile_seconds: float = 0.0
    """Of tracing and of generating its code here, on one core; kernels are not built."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRegion:
    """One region over all blocks (scope ``model`` or ``model+loss``), lowered with few layers."""

    scope: str
    compiled: Work
    """With the layers that were lowered."""
    blocks: tuple[tuple[str, int], ...]
    """Kind of block -> how many were lowered in it."""
    graphs: int
    compile_seconds: float
    saved: tuple[SavedAt, ...] = ()
    """Of the region with the layers that were lowered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes that one rank holds when a step holds most, by what they are held for."""

    parameters: int
    """This rank's share, buffers too."""
    gradients: int
    optimizer: int
    gathered: int
    """Parameters that were gathered from other ranks, and what is on its way to them."""
    saved: int
    """Made in the forward and still held."""
    transient: int
    """Made in the backward or the update and no gradient, and what a compiled graph needs while it runs."""
    other: int
    """Held from step to step and none of these: caches, averages of weights, data."""
    kept_for_backward: int
    """Made in the forward and held when the backward began."""

    @property
    def total(self) -> int:
        """All of it."""
        held = self.parameters + self.gradients + self.optimizer + self.gathered
        return held + self.saved + self.transient + self.other


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """All that is known before times are estimated."""

    target: str
    batch_size: int
    length: int
    ac: str
    dtype: str
    blocks: tuple[Part, ...]
    """Kinds of block."""
    loss: Part | None
    """The cross entropy of all chunks; None where the model's own forward has it."""
    body: Part
    """The model's body without its blocks: embedding, masks, rotary tables, last norm."""
    rest: Part
    """lm_head, the handling of chunks, and what else is outside of the body."""
    wholes: tuple[WholeRegion, ...] = ()
    parameters: int = 0
    trained: int = 0
    """Parameters that get a gradient."""
    parameter_bytes: int = 0
    trained_bytes: int = 0
    block_bytes: int = 0
    """Parameters of the largest block, in the dtype of forward and backward."""
    root_bytes: int = 0
    """The same of parameters outside of all blocks, which stay gathered between forward and backward."""
    gathered_bytes: int = 0
    """The same of all parameters."""
    always_sharded: bool = False
    """FSDP2 gathers on a single rank too."""
    logits_elements: int = 0
    """Logits that are alive at once: one chunk's."""
    refused: tuple[tuple[str, str], ...] = ()
    """(scope, why it could not be lowered)."""
    notes: tuple[str, ...] = ()
