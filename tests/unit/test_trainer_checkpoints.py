"""Checkpoints as directories: what is found, kept, moved aside and cut, without torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer import resume
from trainer.checkpoints.layout import (
    Best,
    State,
    candidates,
    commit,
    damage,
    first_whole,
    prepare,
    read_state,
    truncate_metrics,
)
from trainer.checkpoints.remote import fetch, require_local
from trainer.config import TrainConfig
from trainer.data import Data
from trainer.metrics import Metrics


def write(
    directory: Path,
    step: int,
    *,
    keep: int = 9,
    kinds: tuple[str, ...] = ("step",),
    best: Best | None = None,
    tokens: int | None = None,
) -> Path:
    """A whole checkpoint with one data file."""
    partial = directory / f"step-{step:08d}.partial"
    (partial / "hf").mkdir(parents=True)
    (partial / "hf" / "config.json").write_text("{}")
    (partial / "__0_0.distcp").write_bytes(b"x" * step)
    state = State(
        step=step,
        tokens=step * 10 if tokens is None else tokens,
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


def test_what_is_in_the_way_is_named_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is in the way of the checkpoints; move it away"):
        prepare(tmp_path / "file", None, 0)
    write(tmp_path / "run", 3)
    (tmp_path / "run" / "last").unlink()
    (tmp_path / "run" / "last").mkdir()
    with pytest.raises(ValueError, match="last is in the way"):
        prepare(tmp_path / "run", None, 0)
    assert prepare(tmp_path / "new", None, 0) == []


def test_a_checkpoint_of_an_object_store_is_copied_once(tmp_path: Path) -> None:
    import fsspec

    path, told = write(tmp_path / "run", 7), []
    store = fsspec.filesystem("memory")
    store.put(str(path), "/bucket/run/step-00000007", recursive=True)
    url = "memory://bucket/run/step-00000007"
    copy = fetch(f"{url}/", tmp_path / "here", told.append)
    assert read_state(copy) == read_state(path) and damage(copy) is None
    assert told == [f"copied {url}/ to {copy}"]
    assert fetch(url, tmp_path / "here", told.append) == copy and len(told) == 1, "a whole copy is taken"
    for change in (b"xxxxxxy", b"x"):  # a flipped byte, a file cut short
        (copy / "__0_0.distcp").write_bytes(change)
        assert damage(fetch(url, tmp_path / "here")) is None, "a damaged copy is not"
    other = write(tmp_path / "other", 7, tokens=99)
    store.put(str(other), "/bucket/other/step-00000007", recursive=True)
    copy = fetch("memory://bucket/other/step-00000007", tmp_path / "here")
    assert read_state(copy).tokens == 99, "the same step of another run is another checkpoint"
    store.rm("/bucket/run/step-00000007/state.json")
    shutil.rmtree(copy)
    copy = fetch(url, tmp_path / "here")
    with pytest.raises(ValueError, match="not a checkpoint of this trainer"):
        read_state(copy)  # as it is in the store by now
    assert fetch(f"file://{path}", tmp_path / "there").name == path.name
    for bad, message in (
        ("memory://bucket/none", "memory://bucket/none is not there, or no checkpoint"),
        ("frob://x/step-00000001", "cannot read frob://x/step-00000001: Protocol not known: frob"),
    ):
        with pytest.raises(ValueError, match=message):
            fetch(bad, tmp_path / "here")
    with pytest.raises(ValueError, match="output-dir memory://x is no directory of this machine; give one"):
        require_local("memory://x", "output-dir")


def test_without_fsspec_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        ValueError, match=r"s3://b/step-00000001 needs the package fsspec.*pip install fsspec"
    ):
        fetch("s3://b/step-00000001", tmp_path)


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    assert first_whole(candidates("auto", tmp_path), print) is None
    for step in (8, 16, 24):
        write(tmp_path, step)
    (tmp_path / "step-00000032.partial").mkdir()
    (tmp_path / "step-00000024" / "__0_0.distcp").write_bytes(b"short")
    told: list[str] = []
    assert first_whole(candidates("auto", tmp_path), told.append) == tmp_path / "step-00000016"
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
        first_whole(candidates(str(path), tmp_path), None)


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


def test_what_is_continued_stays_in_a_directory_that_is_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = Path("out") / "checkpoints"
    for step in (2, 4):
        write(directory, step)
    found = first_whole(candidates("auto", directory), print)
    assert found is not None and prepare(directory, found, 4) == []
    assert names(directory) == ["last", "step-00000002", "step-00000004"]


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
    assert (
        first_whole(candidates("auto", tmp_path), print)
        == tmp_path / "step-00000001"
        == (tmp_path / "last").resolve()
    )


def test_options_that_are_compared_are_options() -> None:
    assert {field.name for field in dataclasses.fields(TrainConfig)} >= resume._FREE


def test_a_copy_under_another_name_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    copy = write(directory, 4).rename(directory / "step-before-lunch")
    write(directory, 2)
    assert first_whole(candidates("auto", directory), print) == directory / "step-00000002"
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


@pytest.mark.parametrize("name", ["__0_0.distcp", "hf/config.json", "state.json"])
def test_a_flipped_bit_is_seen_and_the_one_before_is_taken(tmp_path: Path, name: str) -> None:
    older, newer = write(tmp_path, 16), write(tmp_path, 24)
    file = newer / name
    content = bytearray(file.read_bytes())
    # In the state: the step, so that it is still good JSON.
    place = content.index(b'"step": 24') + len('"step": 2') if name == "state.json" else len(content) // 2
    content[place] ^= 1
    file.write_bytes(content)
    told: list[str] = []
    assert first_whole(candidates("auto", tmp_path), told.append) == older
    assert len(told) == 1 and name in told[0] and "not what was written" in told[0]
    with pytest.raises(ValueError, match="is damaged"):
        first_whole(candidates(str(newer), tmp_path), None)


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    older, newer = write(tmp_path, 16), write(tmp_path, 24)
    (newer / "hf" / "config.json").unlink()
    (newer / "hf" / "config.json").mkdir()
    assert first_whole(candidates("auto", tmp_path), print) == older


def test_ranks_share_the_reading_and_miss_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, 24)
    (path / "__0_0.distcp").write_bytes(b"y" * 24)
    assert [damage(path, part, 3) is not None for part in range(3)].count(True) == 1
    assert damage(path) is not None


def test_checksums_that_ranks_made_are_kept(tmp_path: Path) -> None:
    partial = tmp_path / "step-00000003.partial"
    (partial / "hf").mkdir(parents=True)
    (partial / "__0_0.distcp").write_bytes(b"abc")
    state = State(step=3, tokens=1, world=1, ranks={}, data="d", kinds=("step",), best=None, config={})
    path = commit(partial, state, keep=1, sums={"__0_0.distcp": "of another content"})
    assert "__0_0.distcp" in str(damage(path))


def test_a_removed_directory_is_told_and_its_metrics_begin_again(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "out" / "metrics.jsonl"
    record = {
        "loss": 1.0, "grad_norm": 1.0, "grad_norm_raw": 1.0, "lr": 1.0, "tokens_per_second": 1.0, "compile_seconds": 0, "recompiles": [],
    }  # fmt: skip
    with Metrics(path, total=3, enabled=True) as metrics:
        metrics.write({"step": 1, **record})
        shutil.rmtree(path.parent)
        for step in (2, 3):
            metrics.write({"step": step, **record})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 3]
    assert capsys.readouterr().err.count(f"warning: {path} was removed or replaced") == 1


def test_options_that_can_have_no_effect_are_refused(tmp_path: Path) -> None:
    class Set:
        digest, samples = "d", [None]

    data: Any = Data(train=Set(), validation=None, steps=[None] * 9, validation_steps=[])  # type: ignore[arg-type,list-item]
    config = TrainConfig(demo=True, osft=True)
    state = State(
        step=3, tokens=1, world=1, ranks={}, data="d", kinds=("step",), best=None, config=config.to_dict()
    )  # fmt: skip
    assert resume.check(state, config, data, world=1) == []
    for values, message in (
        (
            {"osft_unfreeze_rank_ratio": 0.5},
            "osft-unfreeze-rank-ratio 0.5 has no effect on the checkpoint of step 3, .* with 0.25; give",
        ),
        ({"osft_ranks": "adaptive"}, "osft-ranks adaptive has no effect"),
        ({"osft_beside": "none"}, "osft-beside none has no effect .* with all"),
        ({"osft_task": "2/3"}, "osft-task 2/3 has no effect .* with None"),
        (
            {"osft_rank_pattern": ("mlp=0.5",)},
            "osft-rank-pattern mlp=0.5 has no effect .* with none; .*--osft-redecompose",
        ),
        ({"osft_target_patterns": ("q", "k")}, "osft-target-patterns q,k has no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            resume.check(state, dataclasses.replace(config, **values), data, world=1)  # type: ignore[arg-type]
    assert resume.check(state, dataclasses.replace(config, osft_upcast_dtype="float64"), data, world=1) == [
        "osft-upcast-dtype has no effect: the factors are those of the checkpoint"
    ]
    for values, message in (
        (
            {"model_name_or_path": "m", "demo": False},
            "model-name-or-path m: the weights are those of the checkpoint",
        ),
        (
            {"random_init": True},
            "random-init True: the weights are those of the checkpoint, which began from False",
        ),
    ):
        (note,) = (
            n
            for n in resume.check(state, dataclasses.replace(config, **values), data, world=1)
            if "weights" in n
        )  # type: ignore[arg-type]
        assert note.startswith(message)
    other = dataclasses.replace(data, validation=Set())
    assert "another validation set" in resume.check(state, config, other, world=1)[0]
    Set.digest = "e"
    with pytest.raises(ValueError, match="was trained on other samples"):
        resume.check(state, config, data, world=1)


def test_options_of_another_method_are_not_looked_at() -> None:
    class Set:
        digest, samples = "d", [None]

    data: Any = Data(train=Set(), validation=None, steps=[None] * 9, validation_steps=[])  # type: ignore[arg-type,list-item]
    config = TrainConfig(demo=True)
    state = State(
        step=3, tokens=1, world=1, ranks={}, data="d", kinds=("step",), best=None, config=config.to_dict()
    )  # fmt: skip
    assert resume.check(state, dataclasses.replace(config, osft_ranks="adaptive"), data, world=1) == []
