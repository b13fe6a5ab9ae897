"""What crosses the border between a check and its child processes: tasks go in, messages come back.

Both ends import this module, which imports no torch. Each is a frozen dataclass and one JSON object on a
line: :func:`encode` and :func:`decode` are the only serialiser.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any

from cftdiag.diagnose.engine.probes import LateHook, Numerics, PassedBy, SavedHook
from cftdiag.diagnose.wrong_code import WrongCode
from cftdiag.events import Event, Frame
from cftdiag.forecast.lengths import Shape
from cftdiag.forecast.rank_forecast import RankForecast
from cftdiag.options import CheckOptions
from cftdiag.subject import Origin
from cftdiag.target.step_work import Measured

# ---- tasks ----


#: Steps of which compiled and eager numbers are compared: what a setting does may show late.
COMPARED_STEPS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTask:
    """Shapes of one rank to forecast. ``warm`` is compiled before them, at step 0."""

    rank: int
    shapes: tuple[Shape, ...]
    warm: tuple[Shape, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassTask:
    """One pass over a subject."""

    mode: str
    """``auto``, ``fullgraph``, ``collect``, ``eager``, ``reference``, ``numerics`` or ``sweep``."""
    origin: Origin
    options: CheckOptions
    fullgraph: bool = False
    """Compile with ``fullgraph=True`` whatever the mode."""
    sweep: SweepTask | None = None
    save: str | None = None
    """File for what the eager run computed."""
    compare: str | None = None
    """File of an earlier run to compare with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelsTask:
    """What to lower and describe. ``block`` is a glob over kinds, classes and names of blocks; None means all
    kinds.
    """

    origin: Origin
    options: CheckOptions
    target: str
    block: str | None = None
    compile_kernels: bool = True
    with_bytecode: bool = False
    with_source: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PayoffTask:
    """A training step to count, eager and compiled for a target under each of the scopes."""

    origin: Origin
    options: CheckOptions
    target: str
    scopes: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...] = ()
    """(rows, length) to count; none: the longest of the lengths, or the largest of a model's own batches."""


# ---- messages ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """What the check is doing now, for a status line."""

    phase: str
    """``start``, ``build``, ``step``, ``compile``, ``known`` (the verdict before proofs), ``prove`` or ``done``."""
    mode: str = ""
    """Pass: ``fullgraph``, ``collect``, ``eager`` or a remedy's summary."""
    step: int = 0
    of: int = 0
    length: int | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """One event of torch."""

    event: Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramBlock:
    """One block that the pass compiles."""

    fqn: str
    cls: str
    kind: str | None
    """Label shared by structurally equal blocks."""
    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepShape:
    """Rows and tokens of one step's batch, where they can be told. ``step`` is 1-based."""

    step: int
    batch_size: int | None
    length: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What the pass built and compiles; sent before the first step, and again when untouched stacks left."""

    mode: str
    depth: str
    weightless: bool
    parameters: int
    model_class: str
    model_type: str | None
    compile_kwargs: Mapping[str, Any]
    """JSON-ready, without the backend."""
    wrap: bool
    """The subject compiles itself."""
    blocks: tuple[ProgramBlock, ...]
    steps: tuple[StepShape, ...]
    untouched: tuple[str, ...]
    """Globs of stacks that nobody named and the training step never calls; their blocks are left out."""
    limit: int | None
    """``recompile_limit`` as the main thread sees it."""
    config_sha: str | None
    build_seconds: float
    settings: tuple[str, ...] = ()
    """Settings of remedies that only some releases of torch have, as far as this one has them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDone:
    """A step ran to its end."""

    step: int
    batch_size: int | None
    length: int | None
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumption:
    """Something that the verdict does not know. ``what`` is ``planted``, ``read`` or ``hint`` for a value
    that was made up.
    """

    meaning: str
    what: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeverRan:
    """A module or function that was to be compiled and of which no graph exists."""

    name: str
    """Name in the model, ``<root>`` for the model itself, else the function's own."""
    cls: str
    skipped_file: str | None
    """The file of its forward, where Dynamo skips the frames of that file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What the pass knows at its end, beside its events."""

    graphs: Mapping[str, tuple[str, ...]]
    """Block -> compile ids of the graphs that it ran."""
    fullgraph: Mapping[str, bool]
    """Block -> whether it was captured whole; of the fullgraph pass."""
    calls: Mapping[str, int]
    guards: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Compile id -> what its graph asks of a call, as :mod:`~cftdiag.capture.entry_guards` tells it."""
    never_ran: tuple[NeverRan, ...] = ()
    trained: tuple[str, ...] = ()
    """Parameters that got a gradient in some step."""
    late_hooks: tuple[LateHook, ...] = ()
    saved_tensor_hooks: tuple[SavedHook, ...] = ()
    passed_by: tuple[PassedBy, ...] = ()
    numerics: Numerics | None = None
    wrong_code: tuple[WrongCode, ...] = ()
    undetermined: tuple[Assumption, ...] = ()
    problems: tuple[str, ...] = ()
    check: Any = None
    peak_rss_gb: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """The sweep of one rank."""

    rank: int
    swept: RankForecast


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowering:
    """What was lowered for a target: the JSON-ready object of schema ``cftdiag.kernels/1``."""

    report: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """A training step counted, eager and compiled."""

    measured: Measured
    """Of the shape with the most tokens."""
    others: tuple[Measured, ...] = ()
    """Of the other shapes that were asked for; whole-model scopes are left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception left the training step. ``compile`` is True for one of the compiler, ``create_graph`` for one
    of a backward that was to be differentiated again.
    """

    error: str
    message: str
    compile: bool
    create_graph: bool = False
    where: Frame | None
    step: int
    block: str | None = None
    """The block whose recomputation was not its forward's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """The request is wrong; ``message`` is one line for the user."""

    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfit:
    """This machine or this torch cannot do it; ``message`` is one line for the user."""

    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """The child ended its work; the last message of every child."""


Task = PassTask | KernelsTask | PayoffTask
Message = (
    ProgressEvent
    | Observed
    | Program
    | StepDone
    | Result
    | Forecast
    | Lowering
    | Counted
    | Raised
    | Refused
    | Unfit
    | Done
)
Send = Callable[[Message], None]

_TYPES: Mapping[str, type] = {
    cls.__name__: cls for cls in (*typing.get_args(Task), *typing.get_args(Message))
}


def encode(value: Task | Message) -> dict[str, Any]:
    """JSON-ready dict, with the class's name under ``type``."""
    return {"type": type(value).__name__, **_plain(value)}


def decode(data: Mapping[str, Any]) -> Any:
    """Inverse of :func:`encode`; raises ``ValueError`` for what it did not write."""
    cls = _TYPES.get(str(data.get("type")))
    if cls is None:
        raise ValueError(f"no message of a pass: {data.get('type')!r}")
    return _typed(cls, {name: value for name, value in data.items() if name != "type"})


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, CheckOptions):
        return _plain(value.flat())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _typed(hint: Any, value: Any) -> Any:
    """The value as the annotation says: dataclasses, tuples and mappings are made again from JSON."""
    if value is None or hint is Any:
        return value
    if hint is Event:
        return Event.from_dict(value)
    if hint is CheckOptions:
        return CheckOptions.from_dict(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        return hint(**{name: _typed(hints[name], item) for name, item in value.items()})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return _typed(next(a for a in args if a is not NoneType), value)
    if origin is tuple:
        item_hints = (args[0],) * len(value) if args[-1] is Ellipsis else args
        return tuple(_typed(h, item) for h, item in zip(item_hints, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _typed(args[1], item) for key, item in value.items()}
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
