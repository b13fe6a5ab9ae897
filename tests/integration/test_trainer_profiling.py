"""A profile of some steps is a trace in which each block has a range of its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trainer
from trainer.config import TrainConfig, profile_range


def _train(tiny: Path, out: Path, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=6,
        max_steps=4, export=False, output_dir=str(out), compile_backend="aot_eager", loss_chunks=2,
    )  # fmt: skip
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def _ranges(out: Path) -> list[dict[str, Any]]:
    [file] = (out / "profile").iterdir()
    assert file.name.startswith("rank00000.")
    return [e for e in json.loads(file.read_text())["traceEvents"] if e.get("ph") == "X"]


def _inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_blocks_and_loss_are_named_in_the_steps_that_were_asked_for(
    fresh_dynamo: None, tiny: Path, tmp_path: Path
) -> None:
    records = _train(tiny, tmp_path, compile_scope="block+loss", profile_steps="2-3")
    assert [r["graphs"] for r in records] == [2, 0, 0, 0], "naming must not be part of a graph"
    found = _ranges(tmp_path)
    steps = {e["name"]: e for e in found if e["name"].startswith("step ")}
    assert set(steps) == {"step 2", "step 3"}
    compiled = [e for e in found if "Compiled" in e["name"]]
    rows = sum(len(r["lengths"]) for r in records[1:3])
    for name in ("model.layers.0", "model.layers.1"):
        calls = [e for e in found if e["name"] == name]
        assert len(calls) == rows
        assert all(any(_inside(call, step) for step in steps.values()) for call in calls)
        assert all(any(_inside(region, call) for region in compiled) for call in calls), (
            "the compiled region is inside of the block's range"
        )
    # Two chunks of each row, each computed again in backward.
    assert len([e for e in found if e["name"] == "cross_entropy"]) == 4 * rows


def test_eager_blocks_are_named_and_a_run_that_ends_early_keeps_its_profile(
    tiny: Path, tmp_path: Path
) -> None:
    records = _train(tiny, tmp_path, profile_steps="4-9")
    names = [e["name"] for e in _ranges(tmp_path)]
    assert names.count("step 4") == 1 and names.count("model.layers.0") == len(records[3]["lengths"])


@pytest.mark.parametrize(("text", "steps"), [("3-5", [3, 4, 5]), ("7", [7])])
def test_the_range_is_read(text: str, steps: list[int]) -> None:
    assert list(profile_range(text)) == steps


@pytest.mark.parametrize("text", ["0-2", "5-3", "a-b", "3-", "-3", "1-2-3", ""])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="profile-steps is a range of optimizer steps such as 3-5"):
        TrainConfig(profile_steps=text)
