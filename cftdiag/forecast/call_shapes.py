"""How a step's calls look at any shape: learnt from a few steps run eagerly, so that Dynamo's own state stays
that of the data's order.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch

from cftdiag.capture.cache_entries import Calls
from cftdiag.forecast.bounds import Condition
from cftdiag.forecast.frame_locals import Described, Frame, Unexplained, describe
from cftdiag.forecast.lengths import Shape
from cftdiag.forecast.model_state import unchanged
from cftdiag.forecast.regime_map import Kind

#: Lengths, and batch sizes, that each kind of step is seen with, where the model takes them.
SEVERAL = 4
#: Multiples beyond this that all lengths share are chance, not padding.
_GRID = 64

Codes = dict[tuple[str, int, str], CodeType]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The calls of one step of a shape."""

    batch: int
    length: int
    variant: str
    calls: tuple[Described, ...]

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for steps whose calls differ in sizes alone.

        One row or one token is a kind of its own: strides of dimensions of size 1 follow other rules, and
        torch specialises on them.
        """
        return self.batch == 1, self.length == 1, tuple(call.signature for call in self.calls)


class SeenSteps:
    """Steps seen, and what follows from them for the others."""

    def __init__(self, run: Callable[[Shape], None], model: torch.nn.Module, codes: Codes) -> None:
        self._run, self._model, self._codes = run, model, codes
        self._steps: dict[tuple[int, int, str], Step] = {}
        self._frames: dict[int, list[Frame]] = {}
        self._numbers: dict[tuple[str, tuple[Any, ...]], int] = {}
        self.version = 0
        """Grows when formulas may have changed."""

    def add(self, step: Step) -> None:
        """Take a step into account; one of a kind that is known refines its formulas."""
        self._steps[step.batch, step.length, step.variant] = step
        self._frames.pop(self._number(step), None)
        self.version += 1

    def sample(self, shapes: Sequence[Shape], also: Sequence[Shape] = ()) -> None:
        """Run a few shapes of each variant eagerly, among them the shortest and the longest, until neighbours
        of unlike kind are found exactly.

        ``also`` are run too: shapes whose real step is there to be compared with.
        """
        for shape in also:
            self._eager(*shape.key)
        for variant in dict.fromkeys(s.variant for s in shapes):
            own = [s for s in shapes if s.variant == variant]
            lengths = sorted({s.length for s in own})
            batches = list(dict.fromkeys(s.batch_size for s in own))
            for batch, length in _points(batches, lengths):
                self._eager(batch, length, variant)
            for single in {b == 1 for b in batches}:
                batch = min(b for b in batches if (b == 1) is single)
                self._bisect(
                    batch,
                    sorted({s.length for s in own if (s.batch_size == 1) is single and s.length > 1}),
                    variant,
                )
            self._deepen(batches, lengths, variant)

    def _eager(self, batch: int, length: int, variant: str) -> Step | None:
        key = batch, length, variant
        if key not in self._steps:
            calls: list[Described] = []
            try:
                with unchanged(self._model), torch.compiler.set_stance("force_eager"):
                    with Calls(lambda call: calls.append(describe(call)), self._codes, outermost=True):
                        self._run(Shape(batch, length, variant))
            except Exception:  # noqa: BLE001 - a shape outside of the data may be one that the model refuses; without it there is only less to learn from
                return None
            self._steps[key] = Step(batch, length, variant, tuple(calls))
        return self._steps[key]

    def _bisect(self, batch: int, lengths: Sequence[int], variant: str) -> None:
        known = [n for n in lengths if (batch, n, variant) in self._steps]
        for low, high in itertools.pairwise(known):
            a, b = self._steps[batch, low, variant], self._steps[batch, high, variant]
            while a.signature != b.signature:
                between = lengths[
                    bisect.bisect_right(lengths, a.length) : bisect.bisect_left(lengths, b.length)
                ]
                if not between:
                    break
                middle = self._eager(batch, between[len(between) // 2], variant)
                if middle is None:
                    break
                if middle.signature == a.signature:
                    a = middle
                else:
                    b = middle

    def _deepen(self, batches: Sequence[int], lengths: Sequence[int], variant: str) -> None:
        """See several lengths and several batch sizes of each kind: a size of 4 and a batch of 4 rows must
        not look the same. Lengths that the data has not are multiples of what its own are multiples of: rows that
        are padded to 8 are cut into eight equal chunks, others are not.
        """
        grid = math.gcd(_GRID, *lengths)
        for number in {self._number(s) for s in self._steps.values() if s.variant == variant}:
            steps = [s for s in self._steps.values() if self._number(s) == number]
            batch, low, high = steps[0].batch, min(s.length for s in steps), max(s.length for s in steps)
            inside = [n for n in lengths if low < n < high]
            near = [low + grid, high - grid, low - grid, high + grid, low + 3 * grid, high - 3 * grid]
            near += [low + 7 * grid, low - 7 * grid, low + 12 * grid]
            wanted = [inside[len(inside) * i // 4] for i in (1, 2, 3)] if len(inside) > 3 else inside
            for n in [*wanted, *near] if low > 1 else ():
                if (
                    n > 1
                    and len({s.length for s in self._steps.values() if self._number(s) == number}) < SEVERAL
                ):
                    self._eager(batch, n, variant)
            most = max(*batches, batch)
            for b in [*(b for b in batches if b > 1), most + 1, most + 3, most + 5] if batch > 1 else ():
                if len({s.batch for s in self._steps.values() if self._number(s) == number}) < SEVERAL:
                    self._eager(b, low, variant)

    # ---- what follows ----

    def kind(self, shape: Shape) -> int:
        """Number of the kind of a shape: that of the nearest shape seen with the same variant. Raises
        :class:`Unexplained` when none was.
        """
        exact = self._steps.get(shape.key)
        return self._number(exact if exact is not None else self._nearest(shape))

    def _nearest(self, shape: Shape) -> Step:
        steps = [s for s in self._steps.values() if s.variant == shape.variant]
        alike = [
            s for s in steps if (s.batch == 1, s.length == 1) == (shape.batch_size == 1, shape.length == 1)
        ]
        if not alike:
            raise Unexplained(
                f"no step of {shape.batch_size} x {shape.length} {shape.variant or 'full'} rows could be learnt from"
            )
        return min(
            alike, key=lambda s: (abs(s.length - shape.length), abs(s.batch - shape.batch_size), s.length)
        )

    def frames(self, kind: int) -> list[Frame]:
        """The calls of a kind. Raises :class:`Unexplained`."""
        if kind not in self._frames:
            steps = [s for s in self._steps.values() if self._number(s) == kind]
            # samples of every variant with these arguments, so that each formula has as many points as there
            # are
            same = [s for s in self._steps.values() if s.signature == steps[0].signature]
            self._frames[kind] = [
                Frame([(s.batch, s.length, s.calls[i]) for s in same]) for i in range(len(steps[0].calls))
            ]
        return self._frames[kind]

    def differs(self, step: Step) -> str | None:
        """What of a real step was not foreseen; None where all of it was."""
        kind = self.kind(Shape(step.batch, step.length, step.variant))
        known = next(s for s in self._steps.values() if self._number(s) == kind)
        if known.signature != step.signature:
            return _difference(known, step)
        for frame, call in zip(self.frames(kind), step.calls, strict=True):
            for source, value in call.numbers.items():
                if frame.formulas[source].at(step.batch, step.length) != value:
                    return f"{source} is {value} at {step.batch} x {step.length}, not {frame.formulas[source].text}"
        return None

    def kinds(self) -> dict[int, Kind]:
        """The kinds for the map, with the part of their variant's shapes that each holds for."""
        found = {}
        for (variant, signature), number in self._numbers.items():
            steps = [s for s in self._steps.values() if s.variant == variant and s.signature == signature]
            others = [s for s in self._steps.values() if s.variant == variant and s.signature != signature]
            if not steps:
                continue
            try:
                sizes = tuple(sorted({size for frame in self.frames(number) for size in frame.sizes}))
            except Unexplained:
                sizes = ()
            found[number] = Kind(id=number, variant=variant, domain=_domain(steps, others), sizes=sizes)
        return found

    def _number(self, step: Step) -> int:
        return self._numbers.setdefault((step.variant, step.signature), len(self._numbers))


def _points(batches: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Shapes to begin with: the data's shortest, longest and quartiles for several rows and for one; one
    token where the data has it.
    """
    longer = [n for n in lengths if n > 1] or [2]
    quartiles = [longer[len(longer) * i // 4] for i in (1, 2, 3)]
    for batch in {min((b for b in batches if b > 1), default=1), min(batches)}:
        yield from ((batch, n) for n in sorted({longer[0], longer[-1], *quartiles}))
        if lengths[0] == 1:
            yield batch, 1


def _domain(steps: Sequence[Step], others: Sequence[Step]) -> Condition:
    """What tells the shapes of one kind from the others of its variant: one row or several, one token or
    several, and lengths.
    """
    batch, length = steps[0].batch == 1, steps[0].length == 1
    atoms = ["Eq(B, 1)" if batch else "(B >= 2)"]
    if length:
        atoms.append("Eq(S, 1)")
    lengths = [s.length for s in steps]
    beyond = [s.length for s in others if (s.batch == 1, s.length == 1) == (batch, length)]
    if beyond and max(beyond) > max(lengths):
        atoms.append(f"(S <= {max(lengths)})")
    if beyond and min(beyond) < min(lengths):
        atoms.append(f"(S >= {min(lengths)})")
    return Condition(tuple(atoms))


def _difference(known: Step, step: Step) -> str:
    if len(known.calls) != len(step.calls):
        return f"{len(step.calls)} calls of compiled regions instead of {len(known.calls)}"
    for a, b in zip(known.calls, step.calls, strict=True):
        if a.code is not b.code:
            return f"{b.code.co_qualname} is called where {a.code.co_qualname} was"
        if a.state != b.state:
            return "grad mode or autocast"
        left, right = dict(a.structure), dict(b.structure)
        for source in right:
            if left.get(source) != right[source]:
                return f"{source} in {b.code.co_qualname}"
    return "the arguments' structure"
