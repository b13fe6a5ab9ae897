"""What only one kind of event has: a frozen dataclass for each kind, and its JSON.

The JSON of a detail is an object with the fields as keys; what only the monitor adds is left out where it is
unknown. Keys that are not known here (a newer writer) are ignored, missing ones take the default (an older writer).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from cftdiag.frames import Frame


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorArgument:
    """A tensor that a compiled frame was called with; a ragged size is a text."""

    shape: tuple[int | str, ...]
    dtype: str = ""
    requires_grad: bool = False
    device: str = ""
    cls: str = "Tensor"

    RENAMED: ClassVar[Mapping[str, str]] = {"cls": "class"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalarArgument:
    """A number, a text (at most 200 characters), a bool or None that a compiled frame was called with."""

    value: int | float | bool | str | None
    type: str


Argument = TensorArgument | ScalarArgument


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """One symbol of a graph as torch's trace tells it: ``s0`` for ``L['x'].size()[1]``, its value and its range."""

    record: str
    symbol: Any = None
    val: Any = None
    value: Any = None
    vr: Any = None
    source: Any = None
    sources: Any = None
    reason: Any = None
    line: Frame | None = None
    """The line that turned the symbol into a constant."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"symbol", "val", "value", "vr", "source", "sources", "reason", "line"}
    )


_JUDGED = frozenset({"cause", "remedy", "batch", "planned"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """What the monitor adds to an event of any kind."""

    cause: str | None = None
    """Key of the cause, told while the run goes on."""
    remedy: str | None = None
    """The first remedy in one sentence."""
    batch: tuple[int, int] | None = None
    """(rows, length) of the batch at that moment."""
    planned: bool | None = None
    """Whether the plan foresees this compile."""

    OPTIONAL: ClassVar[frozenset[str]] = _JUDGED


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompileDetail(Detail):
    """One compile of a frame, or of a backward (which has only ``status``, ``fail_*`` and ``cudagraph_skip``)."""

    status: str = "ok"
    """``ok``, ``failed`` or ``skipped`` (nothing to compile)."""
    fullgraph: bool | None = None
    fail_type: str | None = None
    fail_reason: str | None = None
    ops: int | None = None
    """Operations of the graph."""
    guards: int | None = None
    graphs: int = 0
    arguments: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    """Arguments of the frame by the block's parameter names, as far as they are tensors or numbers."""
    argument_names: tuple[str, ...] = ()
    """Names of all arguments."""
    module: str | None = None
    """FQN of the module whose own frame it is, which may be inside of the block."""
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """``args[0]`` -> parameter name, for frames that take ``*args``."""
    symbols: tuple[Symbol, ...] = ()
    unbacked: bool = False
    resumed: bool = False
    """True for the rest of a function after a break."""
    under_checkpoint: bool = False
    """Whether the call runs inside ``torch.utils.checkpoint`` (forward or recomputation)."""
    restarts: int = 0
    cudagraph_skip: str | None = None
    """Why Inductor made no CUDA graph of it, in torch's words, where one was asked for."""

    @property
    def made_graph(self) -> bool:
        """False for a frame that Dynamo went through without giving the backend anything, such as what lies
        between two breaks.
        """
        return self.status == "ok" and self.graphs > 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BreakDetail(Detail):
    """A graph break; with ``fullgraph`` the exception that stands for it."""

    gb_id: str | None = None
    gb_type: str | None = None
    reason: str | None = None
    explanation: str | None = None
    hints: tuple[str, ...] = ()
    context: str | None = None
    fullgraph: bool | None = None
    operator: str | None = None
    """Higher-order operator in which it happened."""
    in_checkpoint: bool = False
    in_autograd_function: bool = False
    under_checkpoint: bool = False
    skips_frame: bool = False
    """True when torch gives up the frame and runs it eager."""
    resumed: bool = False
    exception: str = "Unsupported"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MissDetail(Detail):
    """A recompile: no cache entry fitted."""

    entries: int | None = None
    """Cache entries that were asked."""
    changed: Mapping[str, tuple[str | None, str | None]] = dataclasses.field(default_factory=dict)
    """Source -> (value of the closest entry, value met) of all that differs."""
    guard_block: str | None = None
    """The inner block whose attribute the guard of a whole-model compile reads."""
    arguments: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    self_name: str | None = None
    """The parameter that holds the block's own module."""
    free: tuple[str, ...] = ()
    """Free variables of the compiled code: what a decorator's wrapper closes over."""
    forward: Frame | None = None
    """The block's own ``forward``, where another function (a base class's ``__call__``) was compiled."""
    caller: Frame | None = None
    """The nearest line outside of torch that called a compiled function of torch (``optimizer.step``)."""
    fullgraph: bool | None = None
    under_checkpoint: bool = False
    raised: bool = False
    """True where it was an error (``error_on_recompile``; a limit with fullgraph)."""

    RENAMED: ClassVar[Mapping[str, str]] = {"self_name": "self"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LimitDetail(MissDetail):
    """The recompile limit was hit."""

    limit: int | None = None
    limit_kind: str | None = None
    """``recompile_limit`` or ``accumulated_recompile_limit``."""
    thread: str | None = None
    """Name of the thread, where it was not the main one: torch's limits are set thread by thread."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDetail(Detail):
    """An exception that is no break, or what the monitor itself found (``phase`` ``monitor``)."""

    type: str = ""
    message: str = ""
    create_graph: bool = False
    """True when the backward that raised was to be differentiated again."""
    skipped_file: str | None = None
    """The file whose frames Dynamo skips, where that is why nothing was compiled."""
    phase: str = ""
    """``dynamo``, ``backend``, ``run``, ``step`` or ``monitor``."""
    fullgraph: bool | None = None
    under_checkpoint: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CacheDetail(Detail):
    """A lookup in a compile cache."""

    cache: str | None = None
    outcome: str | None = None
    """``hit``, ``miss`` or ``bypass``."""
    key: str | None = None
    reason: str | None = None
    parts: Mapping[str, str] | None = None
    """Part of the key (``gm``, ``example_inputs``, ``inductor_config``) -> digest, where torch tells them."""
    nearest: str | None = None
    """Of a miss: compile id of this process's lookup with the nearest key."""
    differs: tuple[str, ...] | None = None
    """Parts of the key that are not those of the nearest."""

    OPTIONAL: ClassVar[frozenset[str]] = _JUDGED | {"parts", "nearest", "differs"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GraphDetail(Detail):
    """A graph that was kept as a payload."""

    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepDetail(Detail):
    """What a line of kind ``step`` stands for: finished steps, or a note of the run directory."""

    session: Mapping[str, Any] | None = None
    """The head of a session."""
    end: Mapping[str, Any] | None = None
    blocks: tuple[tuple[str, str], ...] | None = None
    """(name, class) of compiled modules."""
    trained: Mapping[str, int] | None = None
    """Elements of the parameters that the optimizer updates, by dtype."""
    lost: int | None = None
    """Lines that could not be written."""
    first: int | None = None
    """The first of the finished steps."""
    seconds: tuple[float, ...] | None = None
    shapes: tuple[tuple[tuple[int, int], ...], ...] | None = None
    """(rows, length) of each batch by step."""

    OPTIONAL: ClassVar[frozenset[str]] = _JUDGED | {
        "session",
        "end",
        "blocks",
        "trained",
        "lost",
        "first",
        "seconds",
        "shapes",
    }


#: The detail of each kind of event.
OF_KIND: Mapping[str, type[Detail]] = {
    "compile": CompileDetail,
    "graph_break": BreakDetail,
    "recompile": MissDetail,
    "limit_hit": LimitDetail,
    "cache": CacheDetail,
    "graph_output": GraphDetail,
    "error": ErrorDetail,
    "step": StepDetail,
}


def plain(value: Any) -> Any:
    """JSON-ready form of a dataclass and all in it; what is computed from other fields is left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names: Mapping[str, str] = getattr(value, "RENAMED", {})
        optional: frozenset[str] = getattr(value, "OPTIONAL", frozenset())
        told = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        if told.get("cause") is not None:
            optional = optional - {"remedy"}  # a cause without a remedy says so
        return {
            names.get(name, name): plain(item)
            for name, item in told.items()
            if item is not None or name not in optional
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def read(kind: str, data: Mapping[str, Any]) -> Detail:
    """The detail of an event of that kind from its JSON."""
    return _object(OF_KIND[kind], data)


def _object(cls: type[Any], data: Mapping[str, Any]) -> Any:
    names = getattr(cls, "RENAMED", {})
    found = {}
    for field in dataclasses.fields(cls):
        key = names.get(field.name, field.name)
        if key in data:
            found[field.name] = _READ.get(field.name, _same)(data[key])
    return cls(**found)


def argument(data: Mapping[str, Any]) -> Argument:
    """One argument from its JSON."""
    read: Argument = _object(TensorArgument if "shape" in data else ScalarArgument, data)
    return read


def _frame(value: Any) -> Frame | None:
    return None if value is None else _object(Frame, value)


def _same(value: Any) -> Any:
    return value


def _tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _pairs(value: Any) -> Any:
    return None if value is None else tuple((str(a), str(b)) for a, b in value)


_READ: Mapping[str, Any] = {
    "arguments": lambda value: {name: argument(item) for name, item in (value or {}).items()},
    "changed": lambda value: {source: (pair[0], pair[1]) for source, pair in (value or {}).items()},
    "symbols": lambda value: tuple(_object(Symbol, item) for item in value or ()),
    "hints": lambda value: tuple(value or ()),
    "free": lambda value: tuple(value or ()),
    "differs": lambda value: _tuple(value),
    "argument_names": lambda value: tuple(value or ()),
    "line": lambda value: _frame(value) if isinstance(value, Mapping) else value,
    "forward": lambda value: _frame(value),
    "caller": lambda value: _frame(value),
    "shape": _tuple,
    "batch": _tuple,
    "seconds": _tuple,
    "blocks": _pairs,
    "shapes": lambda value: (
        None
        if value is None
        else tuple(tuple((int(rows), int(length)) for rows, length in batch) for batch in value)
    ),
    "parameters": lambda value: dict(value or {}),
}
