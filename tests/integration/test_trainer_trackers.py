"""Trackers get the loop's metrics, are imported only when asked for, and never stop a run."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

import trainer
import trainer.trackers as trackers
from trainer.cli import main, parse
from trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]


def _train(tiny: Path, out: Path, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=6,
        max_steps=2, export=False, output_dir=str(out),
    )  # fmt: skip
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def _scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory)).Reload()
    return {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_the_loss_of_each_step_beside_the_monitors_scalars(
    tiny: Path, tmp_path: Path, fresh_dynamo: None
) -> None:
    pytest.importorskip("tensorboard")
    values: dict[str, Any] = {
        "tracker": ["tensorboard"],
        "validation_split": 0.25,
        "compile_model": True,
        "compile_backend": "eager",
    }
    records = _train(tiny, tmp_path, **values)
    found = _scalars(tmp_path / "tensorboard")
    for key in ("loss", "lr", "grad_norm", "tokens_per_second", "graphs", "recompiles"):
        expected = [r[key] if not isinstance(r[key], list) else len(r[key]) for r in records]
        assert found[f"train/{key}"] == [
            (i + 1, pytest.approx(value, rel=1e-6)) for i, value in enumerate(expected)
        ], key
    assert [value for _, value in found["val/loss"]] == pytest.approx(
        [r["val_loss"] for r in records if "val_loss" in r]
    )
    assert "cftdiag/compile_seconds" in found
    # A resumed run goes on in the same curves.
    _train(tiny, tmp_path, **values, max_steps=3, resume="auto")
    assert [step for step, _ in _scalars(tmp_path / "tensorboard")["train/loss"]] == [1, 2, 3]


def test_wandb_offline_keeps_the_run_in_the_output_directory(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    records = _train(tiny, tmp_path, tracker=["wandb"])
    [run] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    # W&B's log of protobuf records, in which values are JSON texts.
    logged = run.read_bytes()
    for key in ("train/loss", "train/grad_norm", "train/step"):
        assert key.encode() in logged
    for record in records:
        assert json.dumps(record["loss"]).encode() in logged
    assert run.stem.removeprefix("run-") == json.loads((tmp_path / trackers.IDS).read_text())["wandb"]


def test_mlflow_writes_its_file_store(tiny: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    records = _train(tiny, tmp_path, tracker=["mlflow"])
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    run_id = json.loads((tmp_path / trackers.IDS).read_text())["mlflow"]
    history = sorted(client.get_metric_history(run_id, "train/loss"), key=lambda m: m.step)
    assert [(m.step, m.value) for m in history] == [(r["step"], pytest.approx(r["loss"])) for r in records]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.params["max_steps"] == "2"


class _Failing:
    """Works for one step."""

    def __init__(self, out: Path, settings: Any, ids: Any) -> None:
        self.steps: list[int] = []

    def log(self, step: int, scalars: Any, *, axis: str, commit: bool = True) -> None:
        if step == 2:
            raise OSError("no space left on device\nnor elsewhere")
        self.steps.append(step)

    def close(self) -> None:
        raise AssertionError("a tracker that is left out is not called again")


def _refusing(out: Path, settings: Any, ids: Any) -> Any:
    raise ConnectionError("the server is away")


def test_a_tracker_that_fails_is_told_once_and_training_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "_MAKE", {"tensorboard": _Failing, "wandb": _refusing})
    monkeypatch.setattr("trainer.loop.require", lambda names: None)
    records = _train(tiny, tmp_path, tracker=["tensorboard", "wandb"], max_steps=4)
    assert [r["step"] for r in records] == [1, 2, 3, 4]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tracker ")]
    assert told == [
        "tracker wandb is left out from here on: ConnectionError: the server is away",
        "tracker tensorboard is left out from here on: OSError: no space left on device nor elsewhere",
    ]


def test_a_package_that_is_missing_is_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "--model-name-or-path",
                str(tiny),
                "--data-path",
                str(tiny / "data.jsonl"),
                "--tracker",
                "mlflow",
            ]
        )
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: --tracker mlflow needs the package mlflow, which is not installed; pip install mlflow-skinny\n"
    )  # fmt: skip


def test_the_flag_may_be_repeated_and_names_are_checked() -> None:
    assert parse(["--tracker", "wandb", "--tracker", "mlflow,tensorboard"]).tracker == (
        "wandb",
        "mlflow",
        "tensorboard",
    )
    with pytest.raises(ValueError, match="tracker must be one of tensorboard, wandb, mlflow, not 'comet'"):
        TrainConfig(tracker=("comet",))


def test_no_tracker_is_imported_unless_asked_for(tiny: Path, tmp_path: Path, run_python: Any) -> None:
    run_python(
        """
        import sys, trainer
        tiny, out = sys.argv[1:]
        trainer.run_training(dict(model_name_or_path=tiny, random_init=True, data_path=tiny + "/data.jsonl", device="cpu", max_tokens_per_gpu=512,
                                  max_steps=1, export=False, output_dir=out))
        loaded = [name for name in ("wandb", "mlflow", "tensorboard", "torch.utils.tensorboard") if name in sys.modules]
        assert not loaded, loaded
        """,
        str(tiny),
        str(tmp_path),
    )


def test_what_of_a_record_becomes_a_scalar() -> None:
    record = {
        "step": 3, "loss": 1.5, "leak": None, "mfu": None, "lengths": [[8]], "recompiles": [{"block": "b", "reason": "r"}], "val_loss": 2.0,
        "grad_norm": math.inf, "memory": {"peak": 5, "total": 9},
    }  # fmt: skip
    assert trackers.scalars_of(record) == {
        "train/loss": 1.5,
        "train/recompiles": 1,
        "val/loss": 2.0,
        "train/memory_peak_bytes": 5,
    }
