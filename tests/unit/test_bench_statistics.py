"""Paired steps: quantiles, the interval of a median, break-even. By hand and against the binomial's own sums."""

from __future__ import annotations

import itertools

import pytest

from cftdiag.bench.statistics import Interval, break_even, median_interval, paired, quantile, saving


def test_a_quantile_lies_on_the_line_between_two_values() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([10.0, 20.0], 0.1) == pytest.approx(11.0)
    assert quantile([7.0], 0.9) == 7.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize("n", [5, 6, 9, 12])
def test_the_interval_covers_the_median_as_often_as_it_says(n: int) -> None:
    """Each value lies on either side of the true median by a fair coin: count the outcomes that are covered."""
    values = [float(i) for i in range(n)]
    found = median_interval(values)

    def coverage(k: int) -> float:
        """Share of outcomes in which the k-th smallest lies below 0 and the k-th largest above."""
        sides = itertools.product((0, 1), repeat=n)
        return sum(k <= sum(below) <= n - k for below in sides) / 2**n

    best = max((k for k in range(1, n // 2 + 1) if coverage(k) >= 0.95), default=0)
    if best == 0:
        assert (found.low, found.high) == (None, None) and n == 5
    else:
        assert (found.low, found.high) == (values[best - 1], values[n - best])
    assert found.middle == quantile(values, 0.5) and found.count == n


def test_one_wild_step_moves_neither_median_nor_interval() -> None:
    calm = median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8])
    wild = median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 900.0])
    assert calm == wild
    assert calm.low is not None and calm.low < calm.middle < (calm.high or 0)


def test_steps_are_paired_by_key() -> None:
    eager = {(0, 3): 2.0, (0, 4): 3.0, (1, 3): 4.0}
    compiled = {(0, 4): 1.0, (1, 3): 2.0, (1, 4): 9.0}
    assert paired(eager, compiled) == [(3.0, 1.0), (4.0, 2.0)]


def test_the_break_even_step_is_the_first_that_has_paid() -> None:
    saved = Interval(middle=0.5, low=0.25, high=1.0, count=9)
    assert break_even(10.0, saved) == (10, 20, 40)
    assert break_even(10.1, saved) == (11, 21, 41)
    perhaps = Interval(middle=0.5, low=-0.1, high=1.0, count=9)
    assert break_even(10.0, perhaps) == (10, 20, None), "the lower bound never pays"
    assert break_even(10.0, Interval(middle=-0.5, low=-1.0, high=0.0, count=9)) == (None, None, None)
    assert break_even(10.0, Interval(middle=0.5, low=None, high=None, count=2)) == (None, 20, None)


def test_a_thousand_steps_save_what_they_save_less_the_cost() -> None:
    found = saving(100.0, Interval(middle=0.2, low=0.05, high=0.3, count=9))
    assert (found.low, found.middle, found.high) == (-50.0, 100.0, 200.0)
