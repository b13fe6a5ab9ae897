"""What was observed: one frozen dataclass an event, one JSON object a line.

An :class:`Event` says what torch did, never what it means; :mod:`cftdiag.diagnose` turns events into
findings. This module imports neither torch nor a terminal library, so that recorded runs are readable
anywhere.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cftdiag import details, guards
from cftdiag.conditions import Condition
from cftdiag.details import (
    Argument,
    BreakDetail,
    CacheDetail,
    CompileDetail,
    Detail,
    ErrorDetail,
    LimitDetail,
    MissDetail,
    StepDetail,
)
from cftdiag.frames import Frame

__all__ = ["KINDS", "SCHEMA", "Code", "Event", "Frame", "Guard", "Reason", "read_events", "write_events"]

_D = TypeVar("_D", bound=Detail)

SCHEMA = "cftdiag.event/1"

#: Name that Dynamo gives to the rest of a function after a break.
RESUME = "torch_dynamo_resume_in_"

#: Every kind of event, in the order in which a region usually meets them.
KINDS = ("compile", "graph_break", "recompile", "limit_hit", "cache", "graph_output", "error", "step")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """One guard as Dynamo prints it, and what it tests."""

    expression: str
    """``L['x'].size()[1] == 5`` or ``tensor 'x' size mismatch at index 1. expected 5, actual 6``."""
    source: str | None = None
    """The guarded Python source (``L['self'].layer_idx``), where known."""
    added: str | None = None
    """``file:line function`` that added the guard, where known."""
    expected: str | None = None
    """``repr`` of the value the cache entry was compiled for, where known."""
    actual: str | None = None
    """``repr`` of the value that was met, where known."""
    value_type: str | None = None
    """Type name of ``actual`` (``int``, ``str``, ``NoneType``, ``Tensor``), where known."""
    owner: str | None = None
    """What holds the guarded value, where seen: of a global's attribute ``class``, ``module`` or ``object``; of a
    part of a transformers cache of keys and values ``cache``.
    """
    condition: Condition = dataclasses.field(init=False, repr=False, compare=False)
    """The expression, read once, with the values above; no part of the JSON."""

    def __post_init__(self) -> None:
        read = guards.read(self.expression)
        told = dataclasses.replace(
            read,
            source=read.source or guards.local_names(self.source or ""),
            expected=read.expected if read.knows("expected") else guards.literal(self.expected),
            actual=read.actual if read.knows("actual") else guards.literal(self.actual),
            value_type=read.value_type or self.value_type,
        )
        object.__setattr__(self, "condition", told)

    @classmethod
    def of(cls, expression: str, added: str | None = None) -> Guard:
        """The guard of a text of torch, with the source and the values that the text itself tells."""
        read = guards.read(expression)
        source, expected, actual = guards.written(read)
        kind = "Tensor" if read.kind in guards.TENSOR_KINDS and not read.form else None
        return cls(
            expression=expression,
            source=source,
            added=added,
            expected=expected,
            actual=actual,
            value_type=kind,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return details.plain(self)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why one cache entry did not match."""

    entry: str | None
    """Compile id of the entry (``0/3``), where known."""
    guard: Guard
    closest: bool = False
    """True for the entry that came closest to matching: its guard is the cause to report."""
    failed: int | None = None
    """Number of guards of this entry that fail for this call, where they could be counted."""
    block: str | None = None
    """The block that compiled the entry, where known."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The code object of a compiled frame."""

    qualname: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that torch did.

    ``step`` is the optimizer step, 1-based, 0 while warming; ``compile_id`` is ``frame/compile`` with
    ``_attempt`` appended where an attempt is meant; ``seconds`` maps a phase (``dynamo``, ``aot``,
    ``inductor``, ``backward``, ``total``) to seconds; ``payloads`` maps a name to the sha256 of a text kept
    beside the events.
    """

    kind: str
    """``compile``, ``graph_break``, ``recompile``, ``limit_hit``, ``cache``, ``graph_output``, ``error`` or ``step``."""
    time: float
    """Unix time in seconds."""
    rank: int = 0
    step: int = 0
    microstep: int = 0
    compile_id: str | None = None
    """``0/1``: frame and compile of it."""
    region: str | None = None
    """``forward``, ``backward`` or a resume function's name."""
    block: str | None = None
    """``model.layers.17``, wrappers stripped; ``<root>`` when the whole model is the region; None when
    unknown.
    """
    block_class: str | None = None
    code: Code | None = None
    """The function that was compiled."""
    reasons: tuple[Reason, ...] = ()
    """Of a recompile or a limit: why each cache entry did not match."""
    guard: Guard | None = None
    """The guard of the closest reason."""
    stack: tuple[Frame, ...] = ()
    """Innermost last."""
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    payloads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    detail: Detail = dataclasses.field(default_factory=Detail)
    """What only this kind has; the properties below give it by its own type."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown event kind {self.kind!r}; one of {', '.join(KINDS)}")
        wanted = details.OF_KIND[self.kind]
        if type(self.detail) is Detail:
            object.__setattr__(self, "detail", wanted())
        elif not isinstance(self.detail, wanted):
            raise TypeError(f"an event of kind {self.kind!r} has a {type(self.detail).__name__}")

    @property
    def counts_as_compile(self) -> bool:
        """True for a graph of a forward region that came out: its backward graph belongs to the same compile."""
        return self.kind == "compile" and self.region != "backward" and self.compiled.made_graph

    @property
    def compiled(self) -> CompileDetail:
        """The detail of a ``compile``."""
        return self._detail(CompileDetail)

    @property
    def broke(self) -> BreakDetail:
        """The detail of a ``graph_break``."""
        return self._detail(BreakDetail)

    @property
    def missed(self) -> MissDetail:
        """The detail of a ``recompile`` or a ``limit_hit``."""
        return self._detail(MissDetail)

    @property
    def limited(self) -> LimitDetail:
        """The detail of a ``limit_hit``."""
        return self._detail(LimitDetail)

    @property
    def failed(self) -> ErrorDetail:
        """The detail of an ``error``."""
        return self._detail(ErrorDetail)

    @property
    def cached(self) -> CacheDetail:
        """The detail of a ``cache``."""
        return self._detail(CacheDetail)

    @property
    def noted(self) -> StepDetail:
        """The detail of a ``step``."""
        return self._detail(StepDetail)

    def _detail(self, cls: type[_D]) -> _D:
        if not isinstance(self.detail, cls):
            raise TypeError(f"an event of kind {self.kind!r} has no {cls.__name__}")
        return self.detail

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """Arguments of the compiled frame, for the kinds that have them."""
        return self.detail.arguments if isinstance(self.detail, (CompileDetail, MissDetail)) else {}

    @property
    def under_checkpoint(self) -> bool:
        """Whether the compiled call ran inside ``torch.utils.checkpoint``."""
        detail = self.detail
        if isinstance(detail, (CompileDetail, MissDetail, BreakDetail, ErrorDetail)):
            return detail.under_checkpoint
        return False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict, with the schema's name first."""
        return {"schema": SCHEMA, **details.plain(self)}

    def to_line(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps(self.to_dict(), separators=(",", ":"), default=str)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        """Read one event; unknown keys are ignored (a newer writer), a wrong schema or a missing key raises
        ``ValueError``.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} object: schema is {data.get('schema')!r}")
        try:
            return cls(
                **_known(cls, data, skip=("code", "reasons", "guard", "stack", "detail")),
                detail=details.read(data["kind"], data.get("detail") or {}),
                code=Code(**_known(Code, data["code"])) if data.get("code") else None,
                reasons=tuple(_reason(r) for r in data.get("reasons") or ()),
                guard=_guard(data.get("guard")),
                stack=tuple(Frame(**_known(Frame, f)) for f in data.get("stack") or ()),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"malformed {SCHEMA} object: {error}") from error


def _known(cls: type, data: Mapping[str, Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(cls) if f.init} - set(skip)
    return {k: v for k, v in data.items() if k in names}


def _guard(data: Mapping[str, Any] | None) -> Guard | None:
    return Guard(**_known(Guard, data)) if data else None


def _reason(data: Mapping[str, Any]) -> Reason:
    guard = _guard(data["guard"])
    if guard is None:
        raise KeyError("guard")
    return Reason(**_known(Reason, data, skip=("guard",)), guard=guard)


def read_events(path: str | Path) -> Iterator[Event]:
    """Events of one JSONL file, in order.

    A last line cut short by a killed writer is skipped; any other malformed line raises ``ValueError`` with
    its number.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        pending: str | None = None
        for number, line in enumerate(file, 1):
            if pending is not None:
                raise ValueError(pending)
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except ValueError as error:
                pending = f"{path}:{number}: not a JSON line ({error})"
                continue
            yield Event.from_dict(data)


def write_events(path: str | Path, events: Iterable[Event]) -> None:
    """Append events to a JSONL file, one line each."""
    with open(path, "a", encoding="utf-8") as file:
        for event in events:
            file.write(event.to_line() + "\n")
