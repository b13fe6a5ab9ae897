"""The forgetting table: equal learning is compared at equal loss, spread is over seeds; the tasks are what
they say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer import patterns
from trainer.continual import Outcome, Point, at_level, render, rows_of


def _point(step: int, a: float, b: float, base: float = 0.0) -> Point:
    return Point(step=step, loss={"A": a, "B": b, "base": base})


CURVE = [_point(0, 0.0, 4.0), _point(10, 1.0, 2.0), _point(20, 3.0, 1.0)]


def test_the_first_point_at_a_level_is_between_measurements() -> None:
    assert at_level(CURVE, "B", 3.0) == _point(5, 0.5, 3.0)
    assert at_level(CURVE, "B", 2.0) == _point(10, 1.0, 2.0)
    assert at_level(CURVE, "B", 1.5) == _point(15, 2.0, 1.5)
    assert at_level(CURVE, "B", 0.5) == CURVE[-1]


def test_methods_are_compared_where_all_have_learned_the_second_task_equally() -> None:
    slow = [_point(0, 0.5, 4.0), _point(20, 0.6, 2.0, base=0.25)]
    outcomes = [
        Outcome(method="full", seed=0, before=_point(0, 5.0, 5.0), after_a=CURVE[0], during_b=CURVE),
        Outcome(method="osft 0.25", seed=0, before=_point(0, 5.0, 5.0), after_a=slow[0], during_b=slow),
    ]
    full, osft = rows_of(outcomes)
    assert full["A forgotten"][0] == 3.0 and osft["A forgotten"][0] == pytest.approx(0.1)
    # OSFT came down to 2.0 only: full fine-tuning was there at step 10, with 1.0 forgotten.
    assert full["same B: step"][0] == 10 and full["same B: A"][0] == full["same B: A forgotten"][0] == 1.0
    assert osft["same B: step"][0] == 20 and osft["base forgotten"][0] == 0.25


def test_spread_is_over_seeds() -> None:
    ends = {0: 1.0, 1: 3.0}
    outcomes = [
        Outcome(
            method="full",
            seed=seed,
            before=CURVE[0],
            after_a=CURVE[0],
            during_b=[_point(0, 0.0, 2.0), _point(9, a, 1.0)],
        )
        for seed, a in ends.items()
    ]
    [row] = rows_of(outcomes)
    assert row["A forgotten"] == (2.0, pytest.approx(2**0.5))
    assert "| full | 0.00 +- 0.00 | 1.00 +- 0.00 | 2.00 +- 1.41 |" in render([row])


def test_the_two_tasks_contradict_each_other_and_the_files_hold_their_answers(tmp_path: Path) -> None:
    red, blue = patterns.permutation(0), patterns.permutation(1)
    assert sorted(red(patterns.LETTERS)) == sorted(blue(patterns.LETTERS)) == list(patterns.LETTERS)
    assert (
        sum(a == b for a, b in zip(red(patterns.LETTERS), blue(patterns.LETTERS), strict=True))
        < len(patterns.LETTERS) // 2
    )
    path = patterns.write(
        tmp_path / "t.jsonl", {"copy": patterns.BASE["copy"], "next": patterns.BASE["next"]}, count=20, seed=0
    )
    for i, line in enumerate(path.read_text().splitlines()):
        question, answer = (turn["content"] for turn in json.loads(line)["messages"])
        word, text = question.split(" ")
        assert word == ("copy", "next")[i % 2] and len(text) == patterns.LENGTH
        assert answer == (text if word == "copy" else "".join(chr((ord(c) - 97 + 1) % 16 + 97) for c in text))
