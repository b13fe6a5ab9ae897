"""What is known of one compile while its records come in, and what a live process can add to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from cftdiag.capture.recompile_reasons import Miss
from cftdiag.capture.torch_texts import is_torch
from cftdiag.details import Argument, Symbol
from cftdiag.events import RESUME, Code, Frame, Guard, Reason

#: Source -> (value of the entry, value met) of what differs.
Changed = dict[str, tuple[str | None, str | None]]


class Live(Protocol):
    """What the running process knows at the moment of a record."""

    fullgraph: bool | None
    code: Code | None
    block: str | None
    block_class: str | None
    thread: str | None
    """Name of the thread that compiles, where it is not the main one."""
    under_checkpoint: bool
    """Whether the compiled call runs inside ``torch.utils.checkpoint`` (forward or recomputation)."""

    def arguments(self) -> dict[str, Argument]:
        """Tensor and scalar arguments of the compiled frame by parameter name."""

    def module_name(self) -> str | None:
        """FQN of the module whose own frame is compiled."""

    def argument_names(self) -> tuple[str, ...]:
        """Names of all arguments of the compiled frame."""

    def self_name(self) -> str | None:
        """The parameter that holds the block's own module."""

    def free(self) -> tuple[str, ...]:
        """Free variables of the compiled code."""

    def forward(self) -> Frame | None:
        """The block's own ``forward``, where that is not the compiled code."""

    def caller(self) -> Frame | None:
        """The nearest line outside of torch that called a compiled function of torch."""

    def parameters(self) -> dict[str, str]:
        """``args[0]`` -> parameter name of the block's ``forward``."""

    def misses(self, found: list[Miss]) -> list[tuple[Miss, int | None, Changed]]:
        """Per reason: the reason with values met, the entry's failing guards, ``{source: (old, new)}``."""

    def limit(self) -> tuple[str, int] | None:
        """(name of the limit that was hit, its value), where the compile ended by one."""

    def guard_block(self, guard: Guard) -> str | None:
        """The block whose attribute a guard reads, where that is not the compiled block itself."""

    def inner_block(self) -> tuple[str, str | None] | None:
        """(block, class) in which tracing stands: inside a whole-model compile the inlined block."""

    def exception(self) -> str:
        """Class name of the exception that ends the capture; "" when none is in flight."""


@dataclasses.dataclass(slots=True)
class Compile:
    """One compile id, from its first record to its metrics."""

    code: Code | None = None
    block: str | None = None
    block_class: str | None = None
    fullgraph: bool | None = None
    under_checkpoint: bool = False
    arguments: dict[str, Argument] = dataclasses.field(default_factory=dict)
    module_name: str | None = None
    argument_names: tuple[str, ...] = ()
    parameters: dict[str, str] = dataclasses.field(default_factory=dict)
    self_name: str | None = None
    free: tuple[str, ...] = ()
    forward: Frame | None = None
    caller: Frame | None = None
    # a miss
    missed: bool = False
    time: float = 0.0
    reasons: tuple[Reason, ...] = ()
    stack: tuple[Frame, ...] = ()
    changed: Changed = dataclasses.field(default_factory=dict)
    guard_block: str | None = None
    # a capture
    graphs: int = 0
    symbols: list[Symbol] = dataclasses.field(default_factory=list)
    unbacked: bool = False
    breaks: int = 0
    error: str | None = None
    error_type: str = ""
    error_block: tuple[str, str | None] | None = None

    def look(self, live: Live) -> None:
        """Note what the call that is being compiled was given."""
        self.arguments, self.parameters = live.arguments(), live.parameters()
        self.module_name, self.argument_names = live.module_name(), live.argument_names()
        self.self_name, self.free = live.self_name(), live.free()
        self.forward, self.caller = live.forward(), live.caller()

    def restart(self) -> None:
        """Forget what the attempt before found."""
        self.graphs, self.symbols, self.unbacked = 0, [], False

    @property
    def resumed(self) -> bool:
        """True for the rest of a function after a break."""
        return self.code is not None and RESUME in self.code.qualname

    @property
    def region(self) -> str:
        """``forward`` or the resume function's name."""
        return self.code.qualname.rpartition(".")[2] if self.code is not None and self.resumed else "forward"


def closest_guard(found: tuple[Reason, ...]) -> Guard | None:
    """The guard of the closest entry."""
    return next((reason.guard for reason in found if reason.closest), None)


def recorded_code(data: Any) -> Code | None:
    """The compiled code of a recorded ``dynamo_start``: the last frame of its stack."""
    stack = data.get("stack") if isinstance(data, Mapping) else None
    if not stack:
        return None
    last = stack[-1]
    return Code(
        qualname=str(last.get("name")), file=str(last.get("filename")), line=int(last.get("line") or 0)
    )


def recorded_line(stack: Any) -> Frame | None:
    """The innermost line of a recorded user stack that is not torch's own plumbing."""
    found = [
        Frame(
            file=str(item.get("filename")),
            line=item.get("line"),
            function=item.get("name"),
            code=(item.get("loc") or "").strip() or None,
        )
        for item in stack or ()
        if isinstance(item, Mapping)
    ]
    return next(
        (frame for frame in reversed(found) if not is_torch(frame.file)), found[-1] if found else None
    )


def seconds_by_phase(metrics: Mapping[str, Any], total: str = "total") -> dict[str, float]:
    """Seconds by phase. ``dynamo`` is the frame's time outside the backend, ``aot`` the backend's outside
    Inductor.
    """
    whole = float(metrics.get("entire_frame_compile_time_s") or (metrics.get("duration_us") or 0) / 1e6)
    inductor = float(metrics.get("inductor_cumulative_compile_time_us") or 0) / 1e6
    found = {total: whole}
    if inductor:
        found["inductor"] = inductor
    if total == "total":
        backend = float(metrics.get("backend_compile_time_s") or 0)
        found["dynamo"] = max(0.0, whole - backend)
        found["aot"] = max(0.0, backend - inductor)
    return found
