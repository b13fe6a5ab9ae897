"""The regime map: which regions of batch x length share their graphs, told by the guards themselves. Pure and
torch-free.

A step calls several compiled regions (*calls*: one for each kind of block); a shape's *cell* says which
cached graph serves each of them. A regime is a cell that the data visits; its bounds are what the guards of
its graphs require. Graphs overlap: a shape belongs to the first regime, in order, whose bounds hold, and none
of it compiles again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cftdiag.forecast.bounds import Condition
from cftdiag.forecast.formulas import evaluate
from cftdiag.forecast.lengths import Shape

#: Call label -> compile id of the graph that serves it, None where it runs eagerly (recompile limit).
Cell = tuple[tuple[str, str | None], ...]

_ANYWHERE = Condition()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Shapes for which the blocks get the same arguments apart from their sizes.

    ``domain`` tells where among the shapes of its variant (several rows: ``B >= 2``; a mask that appears
    beyond a window: ``S >= 4097``). ``sizes`` are the formulas of all dimensions of the blocks' tensor
    arguments.
    """

    id: int
    variant: str
    domain: Condition = _ANYWHERE
    sizes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A shape of the data, its kind, and the graphs that serve it."""

    shape: Shape
    kind: int
    cell: Cell


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """One region. Ranges are (least, most) over the shapes of the data."""

    id: str
    bounds: tuple[str, ...]
    condition: Condition
    cell: Cell
    variants: tuple[str, ...]
    representative: tuple[int, int, str]
    """(batch size, length, variant) to warm it with."""
    specialises: bool
    """True when every shape of the region equals another input dimension, so that warming would specialise on
    it (duck shapes).
    """
    visits: int
    shapes: int
    lengths: tuple[int, int]
    batch_sizes: tuple[int, int]
    first_step: int

    def covers(self, batch: int, length: int, variant: str) -> bool:
        """True when a shape lies in the region."""
        return variant in self.variants and bool(self.condition.holds(batch, length))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        batch, length, variant = self.representative
        return {
            "id": self.id,
            "bounds": list(self.bounds),
            "representative": {"batch_size": batch, "length": length, "variant": variant},
            "visits": self.visits,
            "shapes": self.shapes,
            "lengths": list(self.lengths),
            "batch_sizes": list(self.batch_sizes),
            "variants": list(self.variants),
            "first_step": self.first_step,
            "graphs": dict(self.cell),
            "specialises": self.specialises,
            "opaque": list(self.condition.opaque),
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RegimeMap:
    """All regimes in the order in which they are asked. ``eager`` are the shapes that run without a graph for
    some call.
    """

    regimes: tuple[Regime, ...]
    eager: tuple[Shape, ...] = ()
    wrong: int = 0
    """Shapes of the data for which the bounds say another regime than probing did."""

    @property
    def exact(self) -> bool:
        """True when bounds and probing agree on every shape of the data."""
        return self.wrong == 0

    def lookup(
        self, batch: np.ndarray[Any, Any], length: np.ndarray[Any, Any], variant: str
    ) -> np.ndarray[Any, Any]:
        """Index of the first regime that covers each shape, -1 for none: such a shape would compile."""
        found = np.full(length.shape, -1)
        for i, regime in enumerate(self.regimes):
            if variant in regime.variants:
                found[(found < 0) & regime.condition.holds(batch, length)] = i
        return found

    def names(self, shapes: Sequence[Shape]) -> dict[tuple[int, int, str], str | None]:
        """Id of each shape's regime, None for none."""
        found: dict[tuple[int, int, str], str | None] = {}
        for variant in dict.fromkeys(s.variant for s in shapes):
            own = [s for s in shapes if s.variant == variant]
            at = self.lookup(
                np.array([s.batch_size for s in own]), np.array([s.length for s in own]), variant
            )
            found.update(
                {s.key: self.regimes[i].id if i >= 0 else None for s, i in zip(own, at, strict=True)}
            )
        return found

    def of(self, batch: int, length: int, variant: str = "") -> Regime | None:
        """The regime of one shape."""
        return next((r for r in self.regimes if r.covers(batch, length, variant)), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "regimes": [r.to_dict() for r in self.regimes],
            "exact": self.exact,
            "wrong": self.wrong,
            "eager": {
                "shapes": len(self.eager),
                "visits": sum(s.visits for s in self.eager),
                "lengths": sorted({s.length for s in self.eager})[:20],
            },
        }


def build(
    visits: Sequence[Visit],
    conditions: Mapping[tuple[str, str, int], Condition],
    kinds: Mapping[int, Kind],
    triggers: Mapping[str, Shape],
) -> RegimeMap:
    """The map of the data's shapes.

    ``conditions[call, compile id, kind]`` is what that graph's guards require of a shape of that kind;
    ``triggers`` gives the shape for which each graph was compiled. ``triggers``' order is the order of
    compiling.
    """
    order = {compile_id: i for i, compile_id in enumerate(triggers)}
    by_cell: dict[Cell, list[Visit]] = {}
    for visit in visits:
        if all(graph is not None for _, graph in visit.cell):
            by_cell.setdefault(visit.cell, []).append(visit)
    drafts: list[tuple[Cell, Condition, list[Visit]]] = []
    for cell in sorted(by_cell, key=lambda cell: [order[graph] for _, graph in cell if graph is not None]):
        drafts += [
            (cell, condition, found)
            for condition, found in _by_condition(cell, by_cell[cell], conditions, kinds)
        ]
    regimes = tuple(_regime(f"r{i}", *draft, kinds, triggers) for i, draft in enumerate(drafts, 1))
    eager = tuple(v.shape for v in visits if any(graph is None for _, graph in v.cell))
    found = RegimeMap(regimes=regimes, eager=eager)
    return dataclasses.replace(found, wrong=_disagreements(found, drafts))


def _by_condition(
    cell: Cell,
    visits: Sequence[Visit],
    conditions: Mapping[tuple[str, str, int], Condition],
    kinds: Mapping[int, Kind],
) -> Iterable[tuple[Condition, list[Visit]]]:
    """The visits of a cell by the bounds that hold for them: arguments of another kind may follow the shape
    otherwise.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Condition, list[Visit]]] = {}
    for kind in sorted({v.kind for v in visits}):
        condition = Condition()
        for call, graph in cell:
            assert graph is not None
            condition = condition.also(conditions.get((call, graph, kind), Condition()))
        condition = condition.also(kinds[kind].domain)
        group = groups.setdefault((condition.bounds(), condition.opaque), (condition, []))
        group[1].extend(v for v in visits if v.kind == kind)
    return groups.values()


def _regime(
    name: str,
    cell: Cell,
    condition: Condition,
    visits: Sequence[Visit],
    kinds: Mapping[int, Kind],
    triggers: Mapping[str, Shape],
) -> Regime:
    shapes = [v.shape for v in visits]
    representative, specialises = _representative(cell, condition, visits, kinds, triggers)
    return Regime(
        id=name,
        bounds=condition.bounds(),
        condition=condition,
        cell=cell,
        variants=tuple(sorted({s.variant for s in shapes})),
        representative=representative,
        specialises=specialises,
        visits=sum(s.visits for s in shapes),
        shapes=len(shapes),
        lengths=(min(s.length for s in shapes), max(s.length for s in shapes)),
        batch_sizes=(min(s.batch_size for s in shapes), max(s.batch_size for s in shapes)),
        first_step=min(s.step for s in shapes),
    )


def _disagreements(found: RegimeMap, drafts: Sequence[tuple[Cell, Condition, list[Visit]]]) -> int:
    wrong = 0
    for i, (_, _, visits) in enumerate(drafts):
        for variant in {v.shape.variant for v in visits}:
            shapes = [v.shape for v in visits if v.shape.variant == variant]
            at = found.lookup(
                np.array([s.batch_size for s in shapes]), np.array([s.length for s in shapes]), variant
            )
            wrong += int((at != i).sum())
    return wrong


# ---- representatives ----


def collides(sizes: Iterable[str], batch: int, length: int) -> bool:
    """True when a dimension that follows the shape equals another dimension of the inputs there: torch would
    take the two for one (duck shapes).

    Sizes 0 and 1 are left out: torch specialises on them in any case.
    """
    values: dict[int, str] = {}
    for text in sizes:
        value = int(evaluate(text, batch, length))
        if value > 1 and values.setdefault(value, text) != text:
            return True
    return False


def _representative(
    cell: Cell,
    condition: Condition,
    visits: Sequence[Visit],
    kinds: Mapping[int, Kind],
    triggers: Mapping[str, Shape],
) -> tuple[tuple[int, int, str], bool]:
    """((batch size, length, variant), whether it equals another dimension all the same).

    Preferred: the shape that compiled the cell's newest graph, since warming with it does just what the run
    would; then the most visited; then any length nearby that the bounds allow.
    """
    kind_of = {v.shape.key: kinds[v.kind] for v in visits}
    compiled = [
        triggers[graph].key
        for _, graph in reversed(cell)
        if graph is not None and triggers[graph].key in kind_of
    ]
    visited = [v.shape.key for v in sorted(visits, key=lambda v: (-v.shape.visits, v.shape.step))]
    for key in [*compiled, *visited]:
        if not collides(kind_of[key].sizes, key[0], key[1]):
            return key, False
    batch, length, variant = (compiled or visited)[0]
    sizes = kind_of[batch, length, variant].sizes
    for distance in range(1, 65):
        for near in (length + distance, length - distance):
            if near >= 2 and condition.holds(batch, near) and not collides(sizes, batch, near):
                return (batch, near, variant), False
    return (batch, length, variant), True


def is_static(regime: Regime) -> bool:
    """True when a region is a single length."""
    return any(text.startswith("S == ") for text in regime.bounds)
