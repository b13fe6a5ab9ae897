"""A second task from an exported OSFT model: decomposed anew, exactly, and what the first task's weights
stand for is kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trainer
from trainer import demo, patterns
from trainer.config import TrainConfig
from trainer.continual import directions
from trainer.continual.__main__ import main
from trainer.distributed import process_group
from trainer.osft.linear import OSFTLinear, compose
from trainer.program import build
from trainer.weights import plain_modules

RATIO = 0.25


def _config(model: Path, data: Path, out: Path, **values: Any) -> TrainConfig:
    base = dict(
        model_name_or_path=str(model), data_path=str(data), output_dir=str(out), device="cpu", train_dtype="float64", save_dtype="float64",
        osft_upcast_dtype="float64", osft=True, osft_unfreeze_rank_ratio=RATIO, max_tokens_per_gpu=512, batch_size=16, max_steps=4,
        learning_rate=5e-3,
    )  # fmt: skip
    return TrainConfig(**{**base, **values})


def _weights(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Task A from a random model, task B from A's export: by OSFT, and B in full for comparison."""
    out = tmp_path_factory.mktemp("continual")
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(out / "m")
    demo.tokenizer().save_pretrained(out / "m")
    for task, seed in (("a", 0), ("b", 1)):
        patterns.write(out / f"{task}.jsonl", {task: patterns.permutation(seed)}, count=64, seed=seed)
    trainer.run_training(_config(out / "m", out / "a.jsonl", out / "A", random_init=True))
    trainer.run_training(_config(out / "A" / "hf", out / "b.jsonl", out / "B"))
    trainer.run_training(_config(out / "A" / "hf", out / "b.jsonl", out / "full", osft=False))
    return out


def test_an_exported_model_is_decomposed_anew_and_exactly(runs: Path) -> None:
    after_a = _weights(runs / "A" / "hf")
    with process_group("cpu"):
        program = build(_config(runs / "A" / "hf", runs / "b.jsonl", runs / "x"))
        layers = {name: m for name, m in plain_modules(program.model).items() if isinstance(m, OSFTLinear)}
        assert len(layers) == 14
        for name, layer in layers.items():
            factors = {key: value.full_tensor().detach() for key, value in layer.named_parameters()}
            weight = after_a[f"{name}.weight"]
            assert (compose(factors, upcast=torch.float64) - weight).norm() < 1e-12 * weight.norm(), name
            # Its own directions, not those of the task before: sorted, and the largest are the frozen ones.
            singular = torch.cat([factors["S_high"], factors["S_low"]])
            torch.testing.assert_close(singular, torch.linalg.svdvals(weight), rtol=1e-10, atol=1e-12)


def _kept(before: Tensor, after: Tensor) -> float:
    """How far ``after`` moved inside of the directions that the new decomposition of ``before`` freezes,
    relative to how far it moved at all.
    """
    u, _, v = torch.linalg.svd(before, full_matrices=False)
    high = round(min(before.shape) * (1 - RATIO))
    moved = after - before
    return max((u[:, :high].T @ moved).norm(), (moved @ v[:high].T).norm()).item() / moved.norm().item()


def test_the_second_task_leaves_the_frozen_directions_of_the_first_as_they_were(runs: Path) -> None:
    before, after, full = (_weights(runs / name / "hf") for name in ("A", "B", "full"))
    names = [name for name in before if "_proj" in name]
    assert len(names) == 14
    for name in names:
        assert (after[name] - before[name]).norm() > 1e-4 * before[name].norm(), (
            f"{name} was not trained: nothing is shown"
        )
        assert _kept(before[name], after[name]) < 1e-10, name
        assert _kept(before[name], full[name]) > 0.5, "full fine-tuning moves them: the measure can see it"


def test_a_checkpoint_is_made_dense_and_decomposed_anew(runs: Path) -> None:
    [checkpoint] = (runs / "A" / "checkpoints").glob("step-*")
    first = _config(
        runs / "m", runs / "b.jsonl", runs / "again", osft_redecompose=str(checkpoint), random_init=True
    )
    trainer.run_training(first)
    again, exported = _weights(runs / "again" / "hf"), _weights(runs / "B" / "hf")
    for name, weight in exported.items():
        assert (again[name] - weight).norm() < 1e-9 * weight.norm(), (
            f"{name}: task B from A's checkpoint is task B from A's export"
        )
    assert not [p for p in (runs / "again").iterdir() if p.name.startswith("tmp")]
    # The same command, started again after a stop, goes on with its own checkpoint.
    result = trainer.run_training(dataclasses.replace(first, resume="auto", max_steps=5))
    records = [json.loads(line) for line in (runs / "again" / "metrics.jsonl").read_text().splitlines()]
    assert result.steps == 5 and [r["step"] for r in records] == [1, 2, 3, 4, 5]


def test_what_cannot_be_decomposed_anew_is_one_line(runs: Path) -> None:
    with pytest.raises(ValueError, match="give osft too"):
        _config(runs / "m", runs / "b.jsonl", runs / "x", osft_redecompose="somewhere", osft=False)
    with pytest.raises(ValueError, match="checkpoint"):
        trainer.run_training(
            _config(runs / "m", runs / "b.jsonl", runs / "x", osft_redecompose=str(runs / "none"))
        )


def test_the_script_runs_all_tasks_by_each_method(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    methods = ["osft progressive beside=none", "gpm 2", "replay"]
    arguments = ["--seeds", "1", "--steps", "2", "--base-steps", "2", "--json", str(file)]
    for method in methods:
        arguments += ["--method", method]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "| replay | 0 of 3 |" in printed.out and "(not learned)" in printed.err
    outcomes = json.loads(file.read_text())
    assert [o["method"] for o in outcomes] == methods
    for outcome in outcomes:
        assert [p["task"] for p in outcome["phases"]] == ["base", "A", "B", "C"]
        assert [p["steps"] for p in outcome["phases"]] == [2] * 4
        assert outcome["phases"][0] == outcomes[0]["phases"][0], "all start from one base model"
        losses = [p["after"]["C"]["loss"] for p in outcome["phases"]]
        assert len(set(losses)) == 4 and all(math.isfinite(loss) for loss in losses)


def test_the_base_task_is_asked_without_some_directions(capsys: pytest.CaptureFixture[str]) -> None:
    assert directions.main(["--seeds", "1", "--base-steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == [
        "| whole", "| without the smallest 25%", "| without the largest 25%",
    ]  # fmt: skip
    assert len(lines) == 3 + 2 * len(directions.SHARES)


def test_what_the_script_cannot_do_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, told in (
        (["--method", "osft 2"], "'osft 2' is no method"),
        (["--seeds", "0"], "at least 1"),
        (["--learned", "0"], "--learned is a positive number"),
        (["--json", str(tmp_path / "none" / "x")], "cannot write"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2 and told in capsys.readouterr().err.splitlines()[-1]
