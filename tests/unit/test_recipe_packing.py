"""Packing: every sample once, rows within bounds, the same on all ranks, without torch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cftdiag.recipe.packing import Sample, Shape, epoch_steps, pack, steps


def _samples(lengths: list[int]) -> list[Sample]:
    return [Sample(length=n, loss_tokens=n // 2, line=i + 1) for i, n in enumerate(lengths)]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 5))
def test_each_sample_is_in_one_row_that_holds_it(lengths: list[int], world: int) -> None:
    microsteps = pack(lengths, Shape(world=world, capacity=100))
    assert sorted(i for ranks in microsteps for row in ranks for i in row) == list(range(len(lengths)))
    assert all(len(ranks) == world for ranks in microsteps)
    assert all(sum(lengths[i] for i in row) <= 100 for ranks in microsteps for row in ranks)


def test_longest_first_into_the_emptiest_row() -> None:
    # 9 | 5, then 4 beside 5 (9 | 9), then 3 into the first of the two, then 1 into the other.
    assert pack([9, 5, 4, 3, 1], Shape(world=2, capacity=16)) == [[[0, 3], [1, 2, 4]]]


def test_more_microsteps_only_when_the_rows_are_full() -> None:
    assert len(pack([8] * 4, Shape(world=2, capacity=16))) == 1
    assert len(pack([8] * 5, Shape(world=2, capacity=16))) == 2


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 1 has 17 tokens, a row holds 16"):
        pack([4, 17], Shape(world=1, capacity=16))


def test_rows_are_padded_to_the_multiple_with_padding_in_each_that_has_room() -> None:
    shape = Shape(world=1, capacity=64, multiple=8)
    assert [shape.padded(n) for n in (1, 7, 8, 9, 63, 64)] == [8, 8, 16, 16, 64, 64]


def test_buckets_leave_few_lengths() -> None:
    shape = Shape(world=1, capacity=64, multiple=8, buckets=(32, 64))
    assert {shape.padded(n) for n in range(1, 65)} == {32, 64}


def test_an_idle_rank_takes_the_length_of_a_busy_one() -> None:
    (step,) = epoch_steps(_samples([20]), Shape(world=3, capacity=64), batch_size=8, seed=0, epoch=0)
    assert [row.length for row in step.rows[0]] == [24, 24, 24]
    assert [row.samples for row in step.rows[0]] == [(0,), (), ()]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_samples_of_each_step_do_not_depend_on_the_world_size(world: int) -> None:
    samples = _samples([5 + i % 17 for i in range(50)])
    mine = steps(samples, Shape(world=world, capacity=64), batch_size=8, seed=3, epochs=2)
    one = steps(samples, Shape(world=1, capacity=64), batch_size=8, seed=3, epochs=2)
    for a, b in zip(mine, one, strict=True):
        assert sorted(i for m in a.rows for r in m for i in r.samples) == sorted(
            i for m in b.rows for r in m for i in r.samples
        )
        assert a.loss_tokens == b.loss_tokens


def test_limits_stop_the_run() -> None:
    samples = _samples([10] * 20)
    shape = Shape(world=1, capacity=64)
    assert len(list(steps(samples, shape, batch_size=4, epochs=2))) == 10
    assert len(list(steps(samples, shape, batch_size=4, epochs=None, max_steps=7))) == 7
    assert len(list(steps(samples, shape, batch_size=4, epochs=None, max_tokens=81))) == 3


def test_epochs_are_shuffled_differently() -> None:
    samples = _samples([10] * 20)
    first, second = (
        [
            r.samples
            for s in epoch_steps(samples, Shape(world=1, capacity=64), batch_size=4, seed=0, epoch=e)
            for r in s.rows[0]
        ]
        for e in (0, 1)
    )
    assert first != second


def test_all_labels_masked_is_an_error() -> None:
    with pytest.raises(ValueError, match="every label is masked"):
        next(steps([Sample(length=4, loss_tokens=0, line=1)], Shape(world=1, capacity=64), batch_size=1))


def test_packing_and_configuration_need_no_torch(run_python) -> None:
    run_python(
        "import sys, trainer, cftdiag.recipe.packing, cftdiag.recipe.train_recipe, trainer.records, trainer.data, trainer.cli; "
        "assert 'torch' not in sys.modules"
    )
