"""Which of the data's shapes compile: guards are asked for every shape, and only the first one missing, in
the order of the data, is run.

Runs inside a pass, on compiled blocks and a virgin Dynamo. What compiles next depends on what was compiled
before (automatic dynamic shapes, hints in guards), never on what hit the cache; so running the first of each
kind of shape in order leaves Dynamo as the whole run would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cftdiag.capture import Recorder
from cftdiag.capture.cache_entries import Call, Calls, Entry, entries
from cftdiag.error_text import one_line
from cftdiag.events import Event
from cftdiag.forecast.call_shapes import Codes, SeenSteps, Step
from cftdiag.forecast.forecast import Outcome, summarise
from cftdiag.forecast.frame_locals import Described, Unexplained, describe, restored
from cftdiag.forecast.lengths import Shape
from cftdiag.forecast.rank_forecast import RankForecast

Run = Callable[[Shape], None]
#: Shapes really run when the blocks' arguments cannot be told from batch and length.
MAX_RUNS = 200
#: Shapes that were foreseen to hit and are run at the end to see that they do.
CHECKED = 3


def sweep(
    run: Run,
    shapes: Sequence[Shape],
    recorder: Recorder,
    *,
    model: torch.nn.Module,
    warm: Sequence[Shape] = (),
    progress: Callable[[int, int, Shape], None] | None = None,
    max_runs: int = MAX_RUNS,
) -> RankForecast:
    """Forecast the compiles of one rank.

    ``run(shape)`` is one training step as the training does it; ``shapes`` are the rank's distinct shapes in
    the order met; ``warm`` is run first, at step 0. ``recorder`` is entered and its steps are set here.
    ``progress(done, of, shape)`` is called before each shape that is run.
    """
    state = _Sweep(run, shapes, recorder, model, progress or (lambda done, of, shape: None), max_runs)
    return summarise(state.go(warm))


class _Sweep:
    def __init__(
        self,
        run: Run,
        shapes: Sequence[Shape],
        recorder: Recorder,
        model: torch.nn.Module,
        progress: Callable[[int, int, Shape], None],
        limit: int,
    ) -> None:
        self.run_step, self.shapes, self.recorder, self.progress, self.limit = (
            run,
            shapes,
            recorder,
            progress,
            limit,
        )
        self.codes: Codes = {}
        self.seen = SeenSteps(run, model, self.codes)
        self.out = Outcome(shapes=tuple(shapes))
        self.cached: dict[Any, tuple[Entry, ...]] = {}
        self.limited: set[tuple[str, int]] = set()
        self.grouped: dict[int, list[list[int]]] = {}
        self.serves: dict[tuple[int, int, str], bool] = {}
        self.stamps: dict[int, tuple[int, int]] = {}
        self.taught = False
        self.last: tuple[Shape, tuple[Described, ...], tuple[str | None, ...]] | None = None
        self.surprise: str | None = None
        self.early: list[tuple[Shape, Step]] = []
        """Steps really run before anything was learnt."""
        self.done: set[tuple[int, int, str]] = set()

    def go(self, warm: Sequence[Shape]) -> Outcome:
        for shape in warm:
            self.real(dataclasses.replace(shape, step=0, microstep=0))
        for i, shape in enumerate(self.shapes):
            if self.out.stopped:
                self.out.unvisited = len(self.shapes) - i
                break
            if self.last is not None and not self.taught and not self.out.by_running:
                self.teach()
            self.meet(shape)
        if not self.taught and not self.out.stopped and self.last is not None:
            self.teach()
        if not self.out.stopped:
            self.confirm()
        self.finish()
        return self.out

    def teach(self) -> None:
        """Learn from steps run eagerly, the steps really run so far among them; then see whether those were
        as the steps that were seen say.
        """
        self.taught = True
        if not self.codes:
            self.by_running("no region was compiled")
        else:
            self.seen.sample(self.shapes, [shape for shape, _ in self.early])
        for shape, step in self.early:
            self.learn_from(shape, step)
        self.early.clear()
        self.verify()

    def learn_from(self, shape: Shape, step: Step) -> None:
        """Compare a step really run with what was foreseen, then add it to the steps that were seen."""
        if not step.calls:
            return
        if not self.out.by_running and self.surprise is None:
            self.surprise = self.seen.differs(step)
        self.seen.add(step)
        if shape.key in self.out.visits:
            self.out.kinds[shape.key] = self.seen.kind(shape)

    # ---- one shape of the data ----

    def meet(self, shape: Shape) -> None:
        """Ask the guards; run the shape when one of its calls finds no graph."""
        if self.taught and not self.out.by_running:
            try:
                cell = self.ask(shape)
                if None not in cell or self.all_limited(shape, cell):
                    self.out.visits[shape.key], self.out.kinds[shape.key] = cell, self.seen.kind(shape)
                    self.out.probed += 1
                    return
            except Unexplained as error:
                self.by_running(str(error))
        if self.out.by_running and self.out.runs >= self.limit:
            self.out.stopped = f"{self.limit} shapes were run one by one and more are left"
            return
        self.real(shape)
        if self.taught and not self.out.stopped:
            self.verify()

    def real(self, shape: Shape) -> None:
        """Run one step of a shape for real and keep what it compiled and which graphs served it."""
        self.progress(len(self.out.visits), len(self.shapes), shape)
        self.recorder.step, self.recorder.microstep = shape.step, shape.microstep
        calls: list[Described] = []
        cell: list[str | None] = []

        def on_call(call: Call) -> None:
            calls.append(describe(call))
            cell.append(next((e.compile_id for e in entries(call.code) if e.matches(call.f_locals)), None))

        before = len(self.recorder.events)
        try:
            with Calls(on_call, self.codes):
                self.run_step(shape)
        except Exception as error:  # noqa: BLE001 - whatever the training would have met here ends the forecast and is told
            self.out.stopped = f"the step of {shape.batch_size} x {shape.length} raised {one_line(error)}"
        self.out.runs += 1
        self.take(shape, self.recorder.events[before:])
        self.cached = {code: entries(code) for code in self.codes.values()}
        self.done.add(shape.key)
        self.last = shape, tuple(calls), tuple(cell)
        if shape.step:
            self.out.visits[shape.key], self.out.kinds[shape.key] = tuple(cell), -1
        if not self.out.stopped:
            step = Step(*shape.key, tuple(calls))
            if self.taught:
                self.learn_from(shape, step)
            else:
                self.early.append((shape, step))

    def take(self, shape: Shape, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "compile" and event.compile_id is not None:
                self.out.triggers.setdefault(event.compile_id, shape)
            if event.kind == "limit_hit":
                if event.code is not None:
                    self.limited.add((event.code.file, event.code.line))
                hit = event.limited
                told = {"limit": hit.limit, "limit_kind": hit.limit_kind, "raised": hit.raised}
                where = {
                    "step": shape.step,
                    "batch_size": shape.batch_size,
                    "length": shape.length,
                    "block": event.block,
                }
                self.out.limit = self.out.limit or {**where, **told}
                if hit.raised:
                    self.out.stopped = self.out.stopped or f"the recompile limit was hit at step {shape.step}"
        self.out.events += [(shape, event) for event in events]

    # ---- asking the guards ----

    def ask(self, shape: Shape) -> tuple[str | None, ...]:
        """Compile id of the graph that would serve each call of a shape, None where none would. Raises
        :class:`Unexplained`.
        """
        kind = self.seen.kind(shape)
        frames = self.seen.frames(kind)
        cell: list[str | None] = [None] * len(frames)
        for group in self.group(kind):
            frame = frames[group[0]]
            with restored(frame.state):
                f_locals = frame.at(shape.batch_size, shape.length)
                found = next(
                    (e.compile_id for e in self.candidates(kind, group[0]) if e.matches(f_locals)), None
                )
            for i in group:
                cell[i] = found
        return tuple(cell)

    def group(self, kind: int) -> list[list[int]]:
        """Calls that the same graphs serve: equal arguments, and each graph takes or refuses all of them at
        the shape it was compiled for.

        Guards of a graph look either at the arguments' sizes or at what is fixed for a call (its module,
        flags, dtypes), so that one probe at the graph's own shape tells about the fixed part.
        """
        stamp = len(self.out.triggers), self.seen.version
        if self.stamps.get(kind) != stamp:
            groups: dict[Any, list[int]] = {}
            for i, frame in enumerate(self.seen.frames(kind)):
                takes = tuple(e.compile_id for e in self.candidates(kind, i))
                groups.setdefault(
                    (frame.example.code, frame.state, tuple(sorted(frame.sources.items())), takes), []
                ).append(i)
            self.grouped[kind], self.stamps[kind] = list(groups.values()), stamp
        return self.grouped[kind]

    def candidates(self, kind: int, i: int) -> list[Entry]:
        """The graphs that take call ``i`` of a kind at their own shape."""
        frame = self.seen.frames(kind)[i]
        found = []
        for entry in self.cached.get(frame.example.code, ()):
            key = kind, i, entry.compile_id
            if key not in self.serves:
                shape = self.out.triggers.get(entry.compile_id)
                with restored(frame.state):
                    self.serves[key] = shape is not None and entry.matches(
                        frame.at(shape.batch_size, shape.length)
                    )
            if self.serves[key]:
                found.append(entry)
        return found

    def all_limited(self, shape: Shape, cell: Sequence[str | None]) -> bool:
        """True when every call without a graph runs code that torch compiles no more."""
        frames = self.seen.frames(self.seen.kind(shape))
        codes = [frame.example.code for frame, graph in zip(frames, cell, strict=True) if graph is None]
        return all((code.co_filename, code.co_firstlineno) in self.limited for code in codes)

    # ---- whether asking can be trusted ----

    def verify(self) -> None:
        """Go on by running when the guards' answers for the step just run are not what happened there."""
        assert self.last is not None
        shape, _, real = self.last
        why = self.surprise
        if why is None and not self.out.by_running:
            try:
                asked = self.ask(shape)
            except Unexplained as error:
                why = str(error)
            else:
                wrong = [i for i, (a, b) in enumerate(zip(asked, real, strict=False)) if a != b]
                why = self.refusal(shape, wrong[0], real[wrong[0]]) if wrong else None
        if why is not None:
            self.by_running(why)

    def refusal(self, shape: Shape, i: int, graph: str | None) -> str:
        frame = self.seen.frames(self.seen.kind(shape))[i]
        entry = next((e for e in self.cached.get(frame.example.code, ()) if e.compile_id == graph), None)
        if entry is None:
            return f"{frame.example.code.co_qualname} found no graph after it was run"
        with restored(frame.state):
            guard = entry.failure(frame.at(shape.batch_size, shape.length))
        return f"a guard looks at more than batch and length: {guard.expression if guard else 'unknown'}"

    def by_running(self, why: str) -> None:
        """From here on every distinct shape is run; what was only asked before is run too."""
        if self.out.by_running:
            return
        self.out.by_running = why
        again = [s for s in self.shapes if s.key in self.out.visits and s.key not in self.done]
        for shape in again:
            if self.out.stopped or self.out.runs >= self.limit:
                break
            self.real(shape)

    def confirm(self) -> None:
        """Run the longest, the shortest and the most frequent shape that were foreseen to hit: none of them
        may compile.
        """
        if self.out.by_running:
            return
        asked = [s for s in self.shapes if s.key not in self.done]
        chosen = {
            s.key: s
            for s in (
                _by(asked, lambda s: s.length),
                _by(asked, lambda s: -s.length),
                _by(asked, lambda s: s.visits),
            )
            if s is not None
        }
        for shape in list(chosen.values())[:CHECKED]:
            foreseen, kind = self.out.visits[shape.key], self.out.kinds[shape.key]
            before = len(self.recorder.events)
            events, self.out.events = self.out.events, []
            self.real(shape)
            self.out.events = events
            self.out.runs -= 1
            compiled = any(
                e.kind == "compile" and e.region != "backward" for e in self.recorder.events[before:]
            )
            self.out.confirmed += 1
            if compiled or self.out.visits[shape.key] != foreseen:
                self.out.mistaken.append(shape)
            self.out.visits[shape.key], self.out.kinds[shape.key] = foreseen, kind

    # ---- what the map is made of ----

    def finish(self) -> None:
        self.out.kind_table = self.seen.kinds()
        self.out.labels = self.labels()
        for kind in self.out.kind_table:
            try:
                frames = self.seen.frames(kind)
            except Unexplained:
                continue
            for i, frame in enumerate(frames):
                for entry in self.cached.get(frame.example.code, ()):
                    self.out.guards[kind, i, entry.compile_id] = (entry, frame)

    def labels(self) -> dict[int, str]:
        """Call index -> name of the block it belongs to, else of its code."""
        found = {}
        for i, call in enumerate(self.last[1] if self.last else ()):
            name = self.recorder.blocks.name(call.objects.get("L['self']"))
            found[i] = self.recorder.blocks.block(name) if name else call.code.co_qualname
        return found


def _by(shapes: Sequence[Shape], key: Callable[[Shape], int]) -> Shape | None:
    return max(shapes, key=key, default=None)
