"""The recorder: a context manager that turns what torch does into events, and leaves torch as it found it."""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, TracebackType
from typing import Any

from cftdiag.capture import capture_ends
from cftdiag.capture.assemble import Assembler
from cftdiag.capture.blocks import Blocks
from cftdiag.capture.cache_parts import Notes
from cftdiag.capture.compile_state import Live
from cftdiag.capture.record import CACHE_ARTIFACTS, GRAPHS, WANTED, Record, named
from cftdiag.capture.tap import Tap, install, remove
from cftdiag.capture.untraced import leave_our_frames_alone
from cftdiag.details import BreakDetail, ErrorDetail, MissDetail
from cftdiag.error_text import shorten
from cftdiag.events import Event, Frame
from cftdiag.torch_private import trace_log

#: Records for which the Python stack is looked at.
_LOOK = frozenset({"dynamo_start", "compilation_metrics"})
_LOOK_ARTIFACTS = frozenset({"recompile_reasons", "dynamo_error", "dynamo_graph_break_reason"})
_ARTIFACTS = _LOOK_ARTIFACTS | frozenset(CACHE_ARTIFACTS)


class Recorder:
    """``with Recorder(model) as rec:`` records every compile, break, recompile and limit hit of this process
    while it is open.

    May be entered again, nested in itself or in others, and used in several at once; each sees everything of
    all threads. ``step`` and ``microstep`` are the caller's to set. ``on_event`` is called with each event as
    it becomes known; what it raises ends in ``problems``, never in the training. With ``keep_payloads``
    graphs and generated code are kept in ``payloads`` by sha256. With ``cache_notes`` lookups in compile caches are
    held against those of earlier processes, and noted for later ones.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        rank: int = 0,
        on_event: Callable[[Event], None] | None = None,
        keep_payloads: bool = False,
        cache_notes: Notes | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.graphs: dict[str, set[str]] = {}
        """Block -> compile ids of the graphs that it ran (from ``counting``); ``?`` collects runs outside any
        known block.
        """
        self.payloads: dict[str, str] = {}
        self.problems: list[str] = []
        """What went wrong inside the recorder itself, at most 20 texts; empty when all is well."""
        self.blocks = Blocks()
        self._on_event = on_event
        self._assembler = Assembler(
            rank=rank,
            keep=self.payloads.__setitem__ if keep_payloads else None,
            cache_notes=cache_notes,
        )
        self._tap = Tap(
            self._feed,
            lambda error: self._problem("trace record", error),
            wanted=WANTED if keep_payloads else WANTED - GRAPHS,
            artifacts=_ARTIFACTS,
        )
        self.codes: dict[CodeType, None] = {}
        """Code objects that were compiled, in order."""
        self._depth = 0
        self._lock = threading.RLock()
        self._running = threading.local()
        self._backends: dict[Any, Callable[..., Any]] = {}
        self._told: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        if model is not None:
            self.watch(model)

    def watch(self, model: Any, blocks: Iterable[str] = ()) -> None:
        """Register a model's modules for attribution (after wrapping); ``blocks`` names those to report as
        blocks, if not the compiled ones.
        """
        self.blocks.watch(model, blocks)

    @property
    def step(self) -> int:
        """Optimizer step stamped on events: 1-based, 0 while warming."""
        return self._assembler.step

    @step.setter
    def step(self, value: int) -> None:
        self._assembler.step = value

    @property
    def microstep(self) -> int:
        """Micro-batch of the step stamped on events."""
        return self._assembler.microstep

    @microstep.setter
    def microstep(self, value: int) -> None:
        self._assembler.microstep = value

    def __enter__(self) -> Recorder:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                leave_our_frames_alone()
                install(self._tap)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            remove(self._tap)
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            self._emit(self._assembler.close())

    def error(self, error: BaseException, phase: str = "run") -> Event | None:
        """Record an exception that reached the training loop (a CheckpointError in backward) as an ``error``
        event.

        Returns None, and records nothing, when torch's trace has told of it already (a fullgraph failure, a
        limit hit that raised).
        """
        if type(error).__name__ in self._told:
            return None
        stack = tuple(
            Frame(file=f.filename, line=f.lineno, function=f.name, code=f.line)
            for f in traceback.extract_tb(error.__traceback__)
        )
        event = Event(
            kind="error",
            time=time.time(),
            rank=self._assembler.rank,
            step=self.step,
            microstep=self.microstep,
            stack=stack,
            detail=ErrorDetail(
                type=type(error).__name__,
                message=shorten(str(error), 4000),
                phase=phase,
                create_graph=capture_ends.differentiated_again(error),
            ),
        )
        with self._lock:
            self._emit([event])
        return event

    def owner(self, compile_id: str) -> str | None:
        """The block that compiled an entry, where known."""
        return self._assembler.owners.get(compile_id, (None, None))[0]

    # -- called by the tap and by compiled blocks ------------------------------------------------------------

    def _feed(self, metadata: dict[str, Any], payload: str | None, time: float) -> None:
        record = Record.of(metadata, payload, time)
        if record.name == "symbolic_shape_specialization":
            record = dataclasses.replace(record, data=named(record.data, trace_log.interned()))
        live: Live | None = None
        if record.name in _LOOK or record.artifact in _LOOK_ARTIFACTS:
            live = self._look()
        with self._lock:
            try:
                events = self._assembler.feed(record, live)
            except Exception as error:  # noqa: BLE001 - something odd about the user's objects must not cost the event itself
                self._problem("live view", error)
                events = self._assembler.feed(record, None)
            self._emit(events)

    def _look(self) -> Live | None:
        from cftdiag.capture.live_compile import LiveCompile

        try:
            live = LiveCompile.find(self.blocks)
            if live is not None and live.compiled_code is not None:
                self.codes[live.compiled_code] = None
            return live
        except Exception as error:  # noqa: BLE001 - a user's module may raise on any access
            self._problem("attribution", error)
            return None

    def _emit(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            self._told.update(_exceptions(event))
            if self._on_event is not None:
                try:
                    self._on_event(event)
                except Exception as error:  # noqa: BLE001 - the callback runs inside the user's compile: nothing of it may reach the training
                    self._problem("on_event", error)

    def _problem(self, where: str, error: Exception) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{where}: {type(error).__name__}: {error}")

    def _enter(self, fqn: str) -> str | None:
        before = getattr(self._running, "block", None)
        self._running.block = fqn
        return before

    def _leave(self, before: str | None) -> None:
        self._running.block = before

    def _ran(self, compile_id: str) -> None:
        block = getattr(self._running, "block", None) or self.owner(compile_id) or "?"
        self.graphs.setdefault(block, set()).add(compile_id)


def _exceptions(event: Event) -> tuple[str, ...]:
    """Class names of the exceptions that the event stands for."""
    detail = event.detail
    if isinstance(detail, BreakDetail) and detail.fullgraph:
        return (detail.exception,)
    if isinstance(detail, MissDetail) and detail.raised:
        return ("FailOnRecompileLimitHit" if event.kind == "limit_hit" else "RecompileError",)
    return (detail.type,) if isinstance(detail, ErrorDetail) and detail.phase != "run" else ()
