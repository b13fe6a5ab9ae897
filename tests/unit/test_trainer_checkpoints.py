"""Checkpoints as directories: what is found, kept, moved aside and cut, without torch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from trainer import resume
from trainer.checkpoints.layout import Best, State, commit, prepare, read_state, resolve, truncate_metrics
from trainer.config import TrainConfig
from trainer.metrics import Metrics


def write(
    directory: Path, step: int, *, keep: int = 9, kinds: tuple[str, ...] = ("step",), best: Best | None = None
) -> Path:
    """A whole checkpoint with one data file."""
    partial = directory / f"step-{step:08d}.partial"
    (partial / "hf").mkdir(parents=True)
    (partial / "hf" / "config.json").write_text("{}")
    (partial / "__0_0.distcp").write_bytes(b"x" * step)
    state = State(
        step=step,
        tokens=step * 10,
        world=2,
        ranks={"a.b": 3},
        data="d",
        kinds=kinds,
        best=best,
        config={"seed": 1},
    )
    return commit(partial, state, keep=keep)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, 7, kinds=("epoch", "best"), best=Best(step=7, loss=0.5))
    state = read_state(path)
    assert (state.step, state.tokens, state.world, state.ranks, state.kinds, state.best) == (
        7,
        70,
        2,
        {"a.b": 3},
        ("epoch", "best"),
        Best(step=7, loss=0.5),
    )
    assert read_state(tmp_path / "best") == read_state(tmp_path / "last") == state


def test_the_newest_stay_and_those_of_epochs_and_the_best(tmp_path: Path) -> None:
    best = None
    for step in range(1, 9):
        best = Best(step=3, loss=0.1) if step == 3 else best
        write(tmp_path, step, keep=2, kinds=("epoch",) if step % 4 == 0 else ("step",), best=best)
    assert names(tmp_path) == ["best", "last", *(f"step-{step:08d}" for step in (3, 4, 7, 8))]
    write(tmp_path, 9, keep=2, best=Best(step=9, loss=0.05))
    assert names(tmp_path) == ["best", "last", *(f"step-{step:08d}" for step in (4, 8, 9))], (
        "what was the best is no longer"
    )


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    assert resolve("auto", tmp_path) is None
    for step in (8, 16, 24):
        write(tmp_path, step)
    (tmp_path / "step-00000032.partial").mkdir()
    (tmp_path / "step-00000024" / "__0_0.distcp").write_bytes(b"short")
    told: list[str] = []
    assert resolve("auto", tmp_path, told.append) == tmp_path / "step-00000016"
    assert len(told) == 1 and "__0_0.distcp should have 24 bytes, it has 5" in told[0]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: p.with_name("nothing"), "is not a directory"),
        (lambda p: p.parent, r"holds checkpoints but is none; give one of them, such as .*step-00000004"),
        (lambda p: p.rename(p.with_name("step-00000004.partial")), "whose writing was cut short"),
        (lambda p: (p / "state.json").unlink() or p, "is not a checkpoint of this trainer"),
        (lambda p: (p / "state.json").write_text("{") and p, "is not a checkpoint of this trainer"),
        (lambda p: (p / "state.json").write_text('"text"') and p, "is not a checkpoint of this trainer"),
        (
            lambda p: (p / "__0_0.distcp").unlink() or p,
            "is damaged: __0_0.distcp should have 4 bytes, it is missing",
        ),
    ],
)
def test_what_is_no_whole_checkpoint_is_refused(tmp_path: Path, break_it: Any, message: str) -> None:
    path = break_it(write(tmp_path, 4))
    with pytest.raises(ValueError, match=message):
        read_state(path)
    with pytest.raises(ValueError, match=message):
        resolve(str(path), tmp_path)


def test_a_start_clears_leftovers_and_moves_aside_what_it_does_not_continue(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        write(directory, step)
    (directory / "step-00000008.partial").mkdir()
    told = prepare(directory, (directory / "step-00000004").resolve(), 4)
    assert names(directory) == ["step-00000002", "step-00000004"], "the link to what is gone is gone as well"
    assert names(tmp_path / "checkpoints.1") == ["step-00000006"]
    assert len(told) == 2
    assert prepare(directory, (directory / "step-00000004").resolve(), 4) == []
    prepare(directory, None, 0)
    assert names(tmp_path / "checkpoints.2") == ["step-00000002", "step-00000004"] and names(directory) == []


def test_metrics_end_with_the_step_that_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    truncate_metrics(path, 3)
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, 6)]
    for text in ("".join(lines), "".join(lines[:3]) + '{"step": 4, "lo', "".join(lines[:3])):
        path.write_text(text)
        truncate_metrics(path, 3)
        assert path.read_text() == "".join(lines[:3])


def test_what_fails_before_it_has_its_name_is_not_found(tmp_path: Path) -> None:
    write(tmp_path, 1)
    partial = tmp_path / "step-00000002.partial"
    partial.mkdir()
    state = State(step=2, tokens=20, world=2, ranks={}, data="d", kinds=("step",), best=None, config={})
    with pytest.raises(FileNotFoundError):
        commit(partial, state, keep=9)  # it lacks hf/
    assert (partial / "state.json").exists(), "it failed late"
    assert resolve("auto", tmp_path) == tmp_path / "step-00000001" == (tmp_path / "last").resolve()


def test_options_that_are_compared_are_options() -> None:
    assert {field.name for field in dataclasses.fields(TrainConfig)} >= resume._FREE


def test_a_copy_under_another_name_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    copy = write(directory, 4).rename(directory / "step-before-lunch")
    write(directory, 2)
    assert resolve("auto", directory) == directory / "step-00000002"
    assert len(prepare(directory, None, 0)) == 1 and copy.exists()


def test_a_fresh_start_keeps_the_metrics_of_the_run_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2, 3):
        with Metrics(path, total=1, enabled=True):
            path.write_text(f"{number}\n")
    assert [
        (tmp_path / name).read_text() for name in ("metrics.jsonl.1", "metrics.jsonl.2", "metrics.jsonl")
    ] == ["1\n", "2\n", "3\n"]
    with Metrics(path, total=1, enabled=True, append=True):
        assert path.read_text() == "3\n"
