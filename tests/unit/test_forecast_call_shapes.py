"""Which shapes are run to see how a step's calls look, and what is said of the shapes between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cftdiag.forecast.call_shapes import SeenSteps, Step, _points
from cftdiag.forecast.frame_locals import Unexplained
from cftdiag.forecast.lengths import Shape


class Seen(SeenSteps):
    """Steps of a model whose calls are told by ``kind_of`` and not run."""

    def __init__(self, kind_of: Callable[[int, int, str], object]) -> None:
        super().__init__(lambda shape: None, torch.nn.Module(), {})
        self.kind_of = kind_of

    def _eager(self, batch: int, length: int, variant: str) -> Step | None:
        step = _Step(batch, length, variant, ())
        object.__setattr__(step, "what", self.kind_of(batch, length, variant))
        return self._steps.setdefault((batch, length, variant), step)


class _Step(Step):
    what: object

    @property
    def signature(self) -> tuple[object, ...]:
        return self.batch == 1, self.length == 1, self.what


def test_the_first_shapes_are_the_ends_and_quartiles_for_several_rows_and_for_one() -> None:
    lengths = [1, 2, 3, 5, 8, 13, 21, 34, 55]
    points = list(_points([4, 1], lengths))
    assert {n for b, n in points if b == 4} == {2, 5, 13, 34, 55, 1} == {n for b, n in points if b == 1}
    assert list(_points([2], [1])) == [(2, 2), (2, 1)], "of one token alone nothing is learnt of the others"
    assert all(n > 1 for _, n in _points([2], [7, 9]))


def test_neighbours_of_unlike_kind_are_found_exactly() -> None:
    """Rows of more than 20 tokens go another way, and padded ones a third."""
    seen = Seen(lambda batch, length, variant: (length > 20, variant))
    lengths = [3, 4, 6, 9, 14, 19, 20, 21, 22, 33, 47, 60]
    shapes = [Shape(2, n, variant) for n in lengths for variant in ("", "padded")]
    seen.sample(shapes)
    for shape in shapes:
        expected = seen._steps.get((2, 20 if shape.length <= 20 else 21, shape.variant))
        assert expected is not None and seen.kind(shape) == seen._number(expected), shape
    assert len({seen.kind(shape) for shape in shapes}) == 4


def test_one_row_is_told_by_one_row_alone() -> None:
    seen = Seen(lambda batch, length, variant: "same")
    seen.sample([Shape(4, n) for n in (5, 9, 30)])
    assert seen.kind(Shape(3, 17)) == seen.kind(Shape(4, 5))
    with pytest.raises(Unexplained, match="no step of 1 x 17 full rows"):
        seen.kind(Shape(1, 17))
    with pytest.raises(Unexplained, match="4 x 5 padded"):
        seen.kind(Shape(4, 5, "padded"))
