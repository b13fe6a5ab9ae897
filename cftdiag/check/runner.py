"""Running passes: each in a child process, its messages gathered into one result. Torch-free."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.events import Event
from cftdiag.forecast.rank_forecast import RankForecast
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import Entry, Launcher, Pass
from cftdiag.passes.messages import (
    Forecast,
    Message,
    Observed,
    PassTask,
    Program,
    ProgressEvent,
    Raised,
    Refused,
    Result,
    StepDone,
    SweepTask,
    Unfit,
)
from cftdiag.subject import Origin

Progress = Callable[[ProgressEvent], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassResult:
    """Everything one pass reported. ``outcome`` is ``ok``, ``timeout`` or ``crash``; ``detail`` says why."""

    mode: str
    events: tuple[Event, ...] = ()
    steps: tuple[StepDone, ...] = ()
    result: Result | None = None
    raised: Raised | None = None
    swept: RankForecast | None = None
    last: ProgressEvent | None = None
    outcome: str = "crash"
    detail: str = ""
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        """True when every step ran to its end."""
        return self.outcome == "ok" and self.raised is None

    @property
    def whole(self) -> bool:
        """True when the pass ran to its end and every block it called was captured whole."""
        captured = {} if self.result is None else self.result.fullgraph
        return self.ended and bool(captured) and all(captured.values())

    @property
    def calls(self) -> Mapping[str, int]:
        """Block -> how often its compiled code was called."""
        return {} if self.result is None else self.result.calls

    @property
    def graphs(self) -> Mapping[str, tuple[str, ...]]:
        """Block -> compile ids of the graphs that it ran."""
        return {} if self.result is None else self.result.graphs

    @property
    def guards(self) -> Mapping[str, tuple[str, ...]]:
        """Compile id -> what its graph asks of a call."""
        return {} if self.result is None else self.result.guards

    @property
    def trained(self) -> frozenset[str] | None:
        """Parameters that got a gradient; None where the pass did not say."""
        return None if self.result is None else frozenset(self.result.trained)

    @property
    def unbacked(self) -> bool:
        """True when a size or a number was read from a tensor inside a graph."""
        return any(e.kind == "compile" and e.compiled.unbacked for e in self.events)

    def has(self, kind: str) -> bool:
        return any(e.kind == kind for e in self.events)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltPass(PassResult):
    """A pass that built its subject and said what it compiles."""

    program: Program


def gather(mode: str, messages: Iterable[Message], progress: Progress = lambda event: None) -> PassResult:
    """The result of a pass from its messages, its outcome still open.

    Raises :class:`InputError` and :class:`EnvironmentUnfit` as the pass says.
    """
    events: list[Event] = []
    steps: list[StepDone] = []
    program: Program | None = None
    fields: dict[str, Any] = {}
    for message in messages:
        match message:
            case Observed():
                events.append(message.event)
            case ProgressEvent():
                fields["last"] = message
                progress(message)
            case Program():
                program, mode = message, message.mode
            case StepDone():
                steps.append(message)
            case Result():
                fields["result"] = message
            case Forecast():
                fields["swept"] = message.swept
            case Raised():
                fields["raised"] = message
            case Refused():
                raise InputError(message.message)
            case Unfit():
                raise EnvironmentUnfit(message.message)
    fields |= {"mode": mode, "events": tuple(events), "steps": tuple(steps)}
    return PassResult(**fields) if program is None else BuiltPass(program=program, **fields)


class Runner:
    """Runs the passes of one check, and keeps what each gave.

    ``launcher`` starts children; without one, ``in_process`` runs a pass here. ``another`` makes one more launcher where
    passes may run side by side.
    """

    def __init__(
        self,
        origin: Origin,
        launcher: Launcher | None,
        progress: Progress | None = None,
        in_process: Entry | None = None,
        another: Callable[[], Launcher] | None = None,
    ) -> None:
        self.origin, self.launcher, self._in_process, self.another = origin, launcher, in_process, another
        self.progress: Progress = progress or (lambda event: None)
        self.passes: list[PassResult] = []
        self.started = time.monotonic()

    @property
    def forks(self) -> bool:
        """True when passes start virgin, so that several can be held against one another."""
        return self.launcher is not None

    def twin(self) -> Runner:
        """A runner with a launcher of its own, to be closed, which adds its passes to those of this one and is silent."""
        assert self.another is not None
        twin = Runner(self.origin, self.another())
        twin.passes = self.passes
        return twin

    def close(self) -> None:
        """Stop the launcher."""
        if self.launcher is not None:
            self.launcher.close()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Tell of no pass meanwhile."""
        kept, self.progress = self.progress, lambda event: None
        try:
            yield
        finally:
            self.progress = kept

    def run(
        self,
        mode: str,
        options: CheckOptions,
        *,
        fullgraph: bool = False,
        sweep: SweepTask | None = None,
        save: str | None = None,
        compare: str | None = None,
    ) -> PassResult:
        """Run one pass to its end; what it sent is kept whatever became of it."""
        task = PassTask(
            mode=mode,
            origin=self.origin,
            options=options,
            fullgraph=fullgraph,
            sweep=sweep,
            save=save,
            compare=compare,
        )
        self.progress(ProgressEvent(phase="start", mode=mode))
        if self.launcher is None:
            assert self._in_process is not None
            started, sent = time.monotonic(), list[Message]()

            def send(message: Message) -> None:
                sent.append(message)
                if isinstance(message, ProgressEvent):
                    self.progress(message)

            self._in_process(task, send)
            done = dataclasses.replace(gather(mode, sent), outcome="ok", seconds=time.monotonic() - started)
        else:
            running = Pass(self.launcher, task, options.budget.timeout)
            # a refused input stops the child at once, not when Python gets to it
            with contextlib.closing(iter(running)) as messages:
                gathered = gather(mode, messages, self.progress)
            done = dataclasses.replace(
                gathered, outcome=running.outcome, detail=running.detail, seconds=running.seconds
            )
        self.passes.append(done)
        return done
