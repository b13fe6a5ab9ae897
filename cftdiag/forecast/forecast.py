"""From what a sweep found to the forecast of its rank: compiles in the order of the data, the regime map, and
ways to pad.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cftdiag.events import Event
from cftdiag.forecast.bounds import Condition
from cftdiag.forecast.formulas import Untranslatable, mentions, translate
from cftdiag.forecast.lengths import Shape
from cftdiag.forecast.padding import suggest
from cftdiag.forecast.rank_forecast import ForecastCompile, RankForecast
from cftdiag.forecast.regime_map import Cell, Kind, RegimeMap, Visit, build

if TYPE_CHECKING:
    from cftdiag.capture.cache_entries import Entry
    from cftdiag.forecast.frame_locals import Frame

#: Points of the figure; beyond, lengths are gathered into bins.
_POINTS = 2000

Key = tuple[int, int, str]


@dataclasses.dataclass
class Outcome:
    """Raw findings of a sweep."""

    shapes: tuple[Shape, ...]
    visits: dict[Key, tuple[str | None, ...]] = dataclasses.field(default_factory=dict)
    """Shape -> compile id of the graph that serves each call of its step."""
    kinds: dict[Key, int] = dataclasses.field(default_factory=dict)
    triggers: dict[str, Shape] = dataclasses.field(default_factory=dict)
    """Compile id -> the shape it was compiled for, in order of compiling."""
    events: list[tuple[Shape, Event]] = dataclasses.field(default_factory=list)
    limit: dict[str, Any] | None = None
    stopped: str | None = None
    unvisited: int = 0
    by_running: str | None = None
    probed: int = 0
    runs: int = 0
    confirmed: int = 0
    mistaken: list[Shape] = dataclasses.field(default_factory=list)
    kind_table: dict[int, Kind] = dataclasses.field(default_factory=dict)
    guards: dict[tuple[int, int, str], tuple[Entry, Frame]] = dataclasses.field(default_factory=dict)
    """(kind, call, compile id) -> the graph and the call's locals."""
    labels: dict[int, str] = dataclasses.field(default_factory=dict)


def summarise(out: Outcome) -> RankForecast:
    """Make the forecast of a sweep."""
    cells = _Cells(out)
    found = build(cells.visits(), cells.conditions(), out.kind_table, out.triggers)
    met = [s for s in out.shapes if s.key in out.visits]
    names = found.names(met)
    mapped = found.to_dict()
    return RankForecast(
        compiles=tuple(_compiles(out, names)),
        limit_hit=out.limit,
        stopped=out.stopped,
        regimes=tuple(mapped["regimes"]),
        exact=mapped["exact"],
        wrong=mapped["wrong"],
        eager=mapped["eager"],
        suggestions=tuple(s.to_dict() for s in suggest(found, met)),
        points=tuple(_points(met, names)),
        counts={
            "shapes": len(out.shapes),
            "probed": out.probed,
            "run": out.runs,
            "confirmed": out.confirmed,
            "unvisited": out.unvisited,
        },
        mistaken=tuple(s.key for s in out.mistaken),
        notes=tuple(_notes(out, found)),
    )


class _Cells:
    """Calls that the same graphs serve for every shape of the data are told as one, under the name of the
    first block.
    """

    def __init__(self, out: Outcome) -> None:
        self.out = out
        width = max((len(cell) for cell in out.visits.values()), default=0)
        columns: dict[tuple[Any, ...], list[int]] = {}
        for i in range(width):
            columns.setdefault(
                tuple(cell[i] if i < len(cell) else "-" for cell in out.visits.values()), []
            ).append(i)
        self.groups: dict[str, list[int]] = {}
        for calls in columns.values():
            label = out.labels.get(calls[0], "?")
            while label in self.groups:
                label += "'"
            self.groups[label] = calls
        self._memo: dict[Any, Condition] = {}

    def cell(self, graphs: Sequence[str | None]) -> Cell:
        return tuple(
            (label, graphs[calls[0]]) for label, calls in self.groups.items() if calls[0] < len(graphs)
        )

    def visits(self) -> list[Visit]:
        out = self.out
        shapes = [s for s in out.shapes if s.key in out.visits and out.kinds[s.key] in out.kind_table]
        return [Visit(shape=s, kind=out.kinds[s.key], cell=self.cell(out.visits[s.key])) for s in shapes]

    def conditions(self) -> dict[tuple[str, str, int], Condition]:
        found: dict[tuple[str, str, int], Condition] = {}
        for label, calls in self.groups.items():
            for kind in self.out.kind_table:
                for graph in self._graphs(calls[0], kind):
                    condition = Condition()
                    for i in calls:
                        condition = condition.also(self._condition(kind, i, graph))
                    found[label, graph, kind] = condition
        return found

    def _graphs(self, call: int, kind: int) -> list[str]:
        met = (
            cell[call]
            for key, cell in self.out.visits.items()
            if call < len(cell) and self.out.kinds[key] == kind
        )
        return [graph for graph in dict.fromkeys(met) if graph is not None]

    def _condition(self, kind: int, call: int, graph: str) -> Condition:
        known = self.out.guards.get((kind, call, graph))
        if known is None:
            return Condition(opaque=("arguments that do not follow batch and length",))
        entry, frame = known
        key = graph, tuple(sorted(frame.sources.items()))
        if key not in self._memo:
            self._memo[key] = condition_of(entry, frame)
        return self._memo[key]


def condition_of(entry: Entry, frame: Frame) -> Condition:
    """What a graph's guards require of a call's batch size and length."""
    moving = {source: f.text for source, f in frame.formulas.items() if f.constant is None}
    every = {source: f.text for source, f in frame.formulas.items()}
    atoms: list[str] = []
    opaque: list[str] = []
    for text in entry.texts():
        if not text.startswith("check_tensor(") and not mentions(text, moving):
            continue
        try:
            atoms += translate(
                text, every, lambda source: _number(entry.value(source, frame.example_locals()))
            )
        except Untranslatable:
            opaque.append(text)
    return Condition(tuple(dict.fromkeys(atoms)), tuple(dict.fromkeys(opaque)))


def _number(value: Any) -> float | None:
    return value if isinstance(value, (bool, int, float)) else None


def _compiles(out: Outcome, names: Mapping[Key, str | None]) -> list[ForecastCompile]:
    recompiled = {event.compile_id: event for _, event in out.events if event.kind == "recompile"}
    backward: dict[str | None, float] = {}
    for _, event in out.events:
        if event.kind == "compile" and event.region == "backward":
            backward[event.compile_id] = backward.get(event.compile_id, 0.0) + _seconds(event)
    found = []
    for shape, event in out.events:
        if event.kind != "compile" or event.region == "backward":
            continue
        reason = recompiled.get(event.compile_id)
        found.append(
            ForecastCompile(
                compile_id=event.compile_id,
                step=shape.step,
                microstep=shape.microstep,
                batch_size=shape.batch_size,
                length=shape.length,
                variant=shape.variant,
                block=event.block,
                code=None if event.code is None else event.code.qualname,
                status=event.compiled.status,
                seconds=round(_seconds(event) + backward.get(event.compile_id, 0.0), 3),
                recompile=reason is not None,
                guard=reason.guard.expression if reason is not None and reason.guard is not None else None,
                regime=names.get(shape.key),
            )
        )
    return found


def _seconds(event: Event) -> float:
    return float(event.seconds.get("total", sum(event.seconds.values())))


def _points(
    shapes: Sequence[Shape], names: Mapping[Key, str | None]
) -> list[tuple[str | None, int, int, int]]:
    width = 1
    while True:
        bins: dict[tuple[str | None, int, int], int] = {}
        for shape in shapes:
            key = names.get(shape.key), shape.batch_size, shape.length // width * width
            bins[key] = bins.get(key, 0) + shape.visits
        if len(bins) <= _POINTS or width > 1 << 20:
            return [(*key, visits) for key, visits in bins.items()]
        width *= 2


def _notes(out: Outcome, found: RegimeMap) -> list[str]:
    notes = []
    if out.by_running:
        notes.append(
            f"every distinct shape was run, since batch and length do not tell it all: {out.by_running}"
        )
    if out.mistaken:
        shown = ", ".join(f"{s.batch_size} x {s.length}" for s in out.mistaken)
        notes.append(f"foreseen to hit but compiled when run: {shown}; do not rely on this forecast")
    opaque = list(dict.fromkeys(text for regime in found.regimes for text in regime.condition.opaque))
    notes += [f"this guard has no symbolic bound and was probed: {text}" for text in opaque[:5]]
    if not found.exact:
        notes.append(f"for {found.wrong} shapes the bounds tell another regime than the guards did")
    return notes
