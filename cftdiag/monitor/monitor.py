"""The monitor: a context manager around a training loop.

Everything here runs inside someone's training. Three rules follow: no callback lets an exception out (one
warning, then silence), nothing is called per step that costs more than microseconds, and nothing of torch is
changed that ``__exit__`` does not put back.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from cftdiag.cache_keys import Notes
from cftdiag.capture.untraced import leave_our_frames_alone
from cftdiag.details import Detail, ErrorDetail, StepDetail
from cftdiag.events import Event
from cftdiag.monitor import process_info
from cftdiag.monitor.alarms import NOT_REACHED, RECOMPILE_KINDS, Alarm, Rules, why
from cftdiag.monitor.event_cause import TOLD, FirstBatch, LiveDiagnosis
from cftdiag.monitor.journal import FLUSH_S, Journal
from cftdiag.monitor.step_counter import StepClock, on_optimizer_step

if TYPE_CHECKING:
    from cftdiag.monitor.sinks import Sink
    from cftdiag.monitor.torch_watch import NeverRun

log = logging.getLogger("cftdiag.monitor")

#: Events kept in memory (``Monitor.events``) and in the recorder; the run directory has all.
KEEP_EVENTS = 5000
#: Distinct batch shapes kept for one step.
KEEP_SHAPES = 32

OnRecompile = Literal["warn", "raise"] | Callable[[Event], None]


class MonitorAlarm(RuntimeError):
    """Raised at a step boundary when an alarm asked for it; ``alarm`` has the facts."""

    def __init__(self, alarm: Alarm) -> None:
        super().__init__(f"step {alarm.step}, rank {alarm.rank}: {alarm.message}")
        self.alarm = alarm


class Monitor:
    """Watch torch.compile while a loop trains::

        with cftdiag.Monitor(model, run_dir="runs/1", warmup_steps=20) as m:
            train(model)

    Args:
        model: the model after wrapping, for names of blocks; without one the outermost module at the first compile is taken.
        run_dir: directory to write (made if missing, shared by all ranks); None keeps events in memory only.
        warmup_steps: steps in which recompiles are expected; a later one sets off an alarm.
        on_recompile: ``"warn"`` logs the alarms about recompiles and the limit, ``"raise"`` also raises :class:`MonitorAlarm` at the next step
            boundary, a callable gets the event of such an alarm.
        on_alarm: called with each :class:`Alarm`.
        raise_on: kinds of alarms that raise at the next step boundary.
        plan: path of a ``cftdiag.plan/1`` file; a recompile outside it sets off an alarm. ``ValueError`` when it cannot be read.
        compile_budget_s: seconds of compile time per rank above which an alarm is set off.
        guards: count guard misses per block and cache entry; a number N samples the failing guard at each N-th miss, True means 100.
        keep_payloads: keep graphs and generated code in the run directory.
        max_steps: end the process with exit code 0 after this many steps.
        sinks: objects of :mod:`cftdiag.monitor.sinks`.
        exchange: ``"auto"`` sends events through torch's TCPStore to rank 0 when ranks do not share the directory; ``"store"`` always, ``"none"``
            never.
        quiet: no log lines.

    Steps are counted after ``Optimizer.step`` of any torch optimizer; a loop that has none, or a compiled
    one, calls :meth:`step`.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        warmup_steps: int = 10,
        on_recompile: OnRecompile = "warn",
        on_alarm: Callable[[Alarm], None] | None = None,
        raise_on: Iterable[str] = (),
        plan: str | os.PathLike[str] | None = None,
        compile_budget_s: float | None = None,
        guards: bool | int = False,
        keep_payloads: bool = False,
        max_steps: int | None = None,
        sinks: Sequence[Sink] = (),
        exchange: str = "auto",
        quiet: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if on_recompile not in ("warn", "raise") and not callable(on_recompile):
            raise ValueError(
                f"on_recompile is {on_recompile!r}; give 'warn', 'raise' or a function of the event"
            )
        if exchange not in ("auto", "store", "none"):
            raise ValueError(f"exchange is {exchange!r}; give 'auto', 'store' or 'none'")
        from cftdiag.monitor.plan_match import Planned

        self.run_dir = None if run_dir is None else Path(run_dir)
        self.events: collections.deque[Event] = collections.deque(maxlen=KEEP_EVENTS)
        """The last events of this rank since it was entered, steps left out."""
        self.alarms: list[Alarm] = []
        self.steps = 0
        """Finished steps since it was entered."""
        self._model = model
        self._planned = None if plan is None else Planned.load(plan)
        self._on_recompile = on_recompile
        self._on_alarm = on_alarm
        self._raise_on = frozenset(raise_on) | (RECOMPILE_KINDS if on_recompile == "raise" else frozenset())
        self._warmup_steps = warmup_steps
        self._compile_budget_s = compile_budget_s
        self._guards = 100 if guards is True else int(guards)
        self._keep_payloads = keep_payloads
        self._max_steps = max_steps
        self._sinks = list(sinks)
        self._exchange = exchange
        self._quiet = quiet
        self._settings = dict(settings or {})
        self._lock = threading.RLock()
        self._warned = False
        self._open = False
        self._rank = 0

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Monitor:
        self.start()
        self._guarded(self._begin)
        if self._model is not None:
            self._guarded(self._check_watched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self.close()

    def start(self) -> None:
        """Listen; the run directory is opened by the first event or step, so that a process that trains
        nothing leaves nothing.
        """
        import cftdiag.diagnose  # noqa: F401 - here, not in the middle of the first recompile
        from cftdiag.capture import Recorder
        from cftdiag.monitor.torch_watch import Watched

        self.events.clear()
        self.alarms.clear()
        self.steps = 0
        self._manual = False
        self._microstep = 0
        self._pid = os.getpid()
        self._journal: Journal | None = None
        self._begun = False
        self._boundary: BaseException | None = None
        self._diagnosis = LiveDiagnosis()
        self._clock = StepClock()
        self._step_started = time.perf_counter()
        self._shapes: list[tuple[int, int]] = []
        self._first_batch = FirstBatch()
        self._last_event: Event | None = None
        self._told_never_run = False
        self._compiling: dict[str, Any] | None = None
        self._recorder = Recorder(
            self._model, on_event=self._on_event, keep_payloads=self._keep_payloads, cache_notes=Notes()
        )
        self._recorder.step = 1
        self._recorder.__enter__()
        self._watched = Watched(
            self._recorder,
            shape=self._on_batch,
            compile_start=self._compile_started,
            compile_end=self._compile_ended,
        )
        if self._guards:
            self._watched.count_guards(self._guards)
        self._end_steps = on_optimizer_step(self._optimizer_stepped)
        self._open = True
        _LIVE.add(self)

    def close(self) -> None:
        """Stop listening and put everything back. May be called again."""
        if not self._open:
            return
        # the calls of a short run were not all watched, but what was compiled is known
        self._guarded(lambda: self._tell_never_run(self._watched.nothing_compiled))
        self._open = False
        _LIVE.discard(self)
        self._end_steps()
        self._guarded(self._watched.close)
        self._recorder.__exit__(None, None, None)
        if self._begun:
            self._guarded(self._finish)

    def step(self) -> None:
        """End of a training step, for loops without a torch optimizer or with a compiled one; from the first
        call on, only these calls count.
        """
        if not self._manual:
            self._manual = True
            # The optimizer of this very step has counted it already.
            if self.steps == 1:
                self._raise_at_boundary()
                return
        self._guarded(self._ended)
        self._raise_at_boundary()

    def models(self) -> list[Any]:
        """The outermost modules that compiled code was seen in and that are still there."""
        roots = (ref() for ref in self._recorder.blocks.roots)
        return [root for root in roots if root is not None]

    def failed(self, error: BaseException) -> None:
        """Note the exception that ends the training."""
        if self._open and isinstance(error, Exception) and not isinstance(error, MonitorAlarm):
            self._guarded(self._recorder.error, error, "step")

    def dynamo_imported(self) -> None:
        """Dynamo has been imported after the monitor's start."""
        if self._open:
            self._guarded(leave_our_frames_alone)
            self._guarded(self._watched.renew)

    # -- called by torch -------------------------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: Any) -> None:
        # Runs once a step: few calls, for each is a cache miss after the milliseconds of torch before it.
        if self._manual or not self._open:
            return
        try:
            begins = not self._begun
            if self._clock.stepped(optimizer):
                self._ended()
            if begins and self._journal is not None:
                self._journal.note(self.steps, StepDetail(trained=process_info.trained(optimizer)))
        except Exception as error:  # noqa: BLE001 - runs inside the user's training, which a bug of ours must not reach
            self._warn(f"internal error at a step's end: {type(error).__name__}: {error}")
        if self._boundary is not None:
            self._raise_at_boundary()

    def _ended(self) -> None:
        now = time.perf_counter()
        with self._lock:
            self.steps = step = self.steps + 1
            seconds, self._step_started = now - self._step_started, now
            shapes, self._shapes = self._shapes, []
            self._recorder.step = step + 1
            if self._microstep:
                self._recorder.microstep = self._microstep = 0
            if not self._begun:
                self._begin()
            if self._journal is not None and self._journal.step(step, seconds, shapes, now):
                self._tick()
            if self._sinks:
                for sink in list(self._sinks):
                    self._to_sink(sink, "step", step, seconds)
            if self._watched.pending or step == self._warmup_steps + 1:
                self._check_watched()
            if step == self._max_steps:
                self._boundary = self._boundary or SystemExit(0)

    def _on_batch(self, shape: tuple[int, int] | None) -> None:
        self._microstep += 1
        self._recorder.microstep = self._microstep
        if shape is not None and len(self._shapes) < KEEP_SHAPES:
            self._shapes.append(shape)

    def _on_event(self, event: Event) -> None:
        if os.getpid() != self._pid or not self._open:
            return
        with self._lock:
            if not self._begun:
                self._guarded(self._begin)
            if self._begun:
                self._guarded(self._record, event)

    def _record(self, event: Event) -> None:
        event = dataclasses.replace(event, rank=self._rank, detail=self._seen(event))
        explained = self._guarded(self._diagnosis.explain, event) or event
        self.events.append(explained)
        self._last_event = explained
        if len(self._recorder.events) > KEEP_EVENTS:
            del self._recorder.events[: KEEP_EVENTS // 2]
        if self._journal is not None:
            self._journal.event(explained)
            for name in event.payloads.values():
                text = self._recorder.payloads.pop(name, None)
                if text is not None:
                    self._journal.payload(name, text)
        for sink in list(self._sinks):
            self._to_sink(sink, "event", explained)
        if explained.kind in TOLD:
            if self._compiling is not None:
                self._compiling = {**self._compiling, "block": event.block}
            self._say(
                logging.INFO, f"step {event.step}: {event.kind} of {event.block or '?'}: {why(explained)}"
            )
            self._state()
        for alarm in self._rules.feed(explained):
            self._alarm(alarm)
        self._watched.note(event)
        if (
            self.steps == 0
            and event.kind == "compile"
            and event.code is not None
            and event.code.file.endswith("torch/optim/optimizer.py")
        ):
            self._warn(
                "Optimizer.step is compiled, so its calls cannot be counted; call Monitor.step() after each step"
            )

    def _seen(self, event: Event) -> Detail:
        """The event's detail with what only the monitor knows: the batch, and whether the plan foresees the
        compile.
        """
        batch = self._shapes[-1] if self._shapes else self._first_batch.of(event)
        detail = dataclasses.replace(event.detail, batch=batch)
        if self._planned is not None and event.kind in ("compile", "recompile"):
            detail = dataclasses.replace(detail, planned=self._planned.foresees(event, batch))
        return detail

    def _compile_started(self, compile_id: str) -> None:
        self._compiling = {"id": compile_id, "since": time.time(), "step": self.steps + 1}
        self._guarded(self._state)

    def _compile_ended(self) -> None:
        self._compiling = None
        self._guarded(self._state)

    # -- own work --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Open the run directory: the rank is known by now."""
        if self._begun or not self._open:
            return
        if process_info.in_data_worker():
            self._abandon()
            return
        self._begun = True
        self._rank = process_info.rank()
        refused = (
            None if self._planned is None else self._planned.differs(self._model, process_info.world_size())
        )
        if refused is not None:
            # the ranks and the wrapped model are known only now, when a training must not be stopped any more
            self._say(logging.WARNING, f"{refused}; the run is not held against it")
            self._planned = None
        settings = {
            "warmup_steps": self._warmup_steps,
            "compile_budget_s": self._compile_budget_s,
            "limit": self._watched.limit(),
            "on_recompile": self._on_recompile if isinstance(self._on_recompile, str) else "callable",
            "guards": self._guards,
            "plan": None if self._planned is None else self._planned.name,
            **({} if refused is None else {"plan_refused": refused}),
            **self._settings,
        }
        self._rules = Rules(
            warmup_steps=self._warmup_steps, compile_budget_s=self._compile_budget_s, limit=settings["limit"]
        )
        self._facts = process_info.facts(settings)
        if self.run_dir is None:
            return
        from cftdiag.monitor.exchange import outlet

        self._outlet = self._guarded(outlet, self.run_dir, self._exchange, self._warn)
        self._journal = Journal(
            self.run_dir, self._rank, self._warn, copy=self._outlet.send if self._outlet is not None else None
        )
        self._guarded(process_info.write_run_file, self.run_dir, self._facts)
        self._journal.session(self._facts)
        self._state()

    def _abandon(self) -> None:
        """This process is no rank: write nothing, from here on."""
        self._open = self._begun = False
        self._journal = None
        self._sinks.clear()
        self._end_steps()

    def _finish(self) -> None:
        guards = self._watched.guard_counts(self.steps)
        if self._journal is not None:
            facts = {
                "steps": self.steps,
                "alarms": [a.to_dict() for a in self.alarms],
                "problems": self._recorder.problems,
                "guards": guards,
            }
            self._compiling = None
            self._journal.end(self.steps, facts, self._now(ended=True))
            if self._outlet is not None:
                self._outlet.close()
        for sink in list(self._sinks):
            self._to_sink(sink, "close")

    def _state(self) -> None:
        """Tell the live view what this rank is doing."""
        if self._journal is not None and self._open:
            self._journal.state(self._now())

    def _now(self, *, ended: bool = False) -> dict[str, Any]:
        last = self._last_event
        return {
            **{k: self._facts[k] for k in ("id", "rank", "world_size", "pid", "host", "started")},
            "time": time.time(),
            "step": self.steps,
            "step_seconds": self._journal.recent() if self._journal is not None else 0.0,
            "compiling": self._compiling,
            "last": None
            if last is None
            else {
                "kind": last.kind,
                "step": last.step,
                "block": last.block,
                "cause": last.detail.cause,
            },
            "group_timeout": self._watched.group_timeout(),
            "ended": ended,
        }

    def _tick(self) -> None:
        """About once a second, at a step's end."""
        self._state()
        self._watched.renew()

    def _check_watched(self) -> None:
        found = self._watched.install()
        if found and self._journal is not None:
            self._journal.note(self.steps, StepDetail(blocks=tuple(found)))
        if self.steps == self._warmup_steps + 1:
            self._tell_never_run(self._watched.never_run)

    def _tell_never_run(self, find: Callable[[], list[NeverRun]]) -> None:
        """What was to be compiled and ran no graph: told once, after the warm-up or at the end of a short run."""
        if self._told_never_run or not self.steps:
            return
        self._told_never_run = True
        for never in find():
            detail = ErrorDetail(
                type=NOT_REACHED,
                cause=NOT_REACHED,
                message=never.message(self.steps),
                skipped_file=never.skipped_file,
                phase="monitor",
            )
            self._on_event(
                Event(
                    kind="error",
                    time=time.time(),
                    step=self.steps,
                    block=never.name,
                    block_class=never.cls,
                    detail=detail,
                )
            )

    def _alarm(self, alarm: Alarm) -> None:
        if len(self.alarms) < KEEP_EVENTS:
            self.alarms.append(alarm)
        self._say(
            logging.WARNING,
            f"step {alarm.step}: {alarm.block or ''}{': ' if alarm.block else ''}{alarm.message}",
        )
        if callable(self._on_recompile) and alarm.kind in RECOMPILE_KINDS and alarm.event is not None:
            self._guarded(self._on_recompile, alarm.event)
        if self._on_alarm is not None:
            self._guarded(self._on_alarm, alarm)
        for sink in list(self._sinks):
            self._to_sink(sink, "alarm", alarm)
        if alarm.kind in self._raise_on and self._boundary is None:
            self._boundary = MonitorAlarm(alarm)

    def _raise_at_boundary(self) -> None:
        boundary, self._boundary = self._boundary, None
        if boundary is not None:
            raise boundary

    def _say(self, level: int, text: str) -> None:
        if not self._quiet:
            log.log(level, "[rank %d] %s", self._rank, text)

    def _to_sink(self, sink: Sink, method: str, *args: Any) -> None:
        try:
            getattr(sink, method)(*args)
        except Exception as error:  # noqa: BLE001 - a tracker that fails must not stop the training
            if sink in self._sinks:
                self._sinks.remove(sink)
            self._warn(f"{type(sink).__name__} is left out from here on: {type(error).__name__}: {error}")

    def _guarded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - runs inside the user's training, which a bug of ours must not reach
            self._warn(
                f"internal error in {getattr(function, '__name__', function)}: {type(error).__name__}: {error}"
            )
            return None

    def _warn(self, text: str) -> None:
        """One warning, then silence."""
        if not self._warned:
            self._warned = True
            log.warning("[rank %d] %s", self._rank, text)


_LIVE: weakref.WeakSet[Monitor] = weakref.WeakSet()


def _forked() -> None:
    """A forked child (a data worker) shares the files but is no rank: it must write nothing."""
    for monitor in list(_LIVE):
        monitor._abandon()


os.register_at_fork(after_in_child=_forked)

__all__ = ["FLUSH_S", "Monitor", "MonitorAlarm"]
