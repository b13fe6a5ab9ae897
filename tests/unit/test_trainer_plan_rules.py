"""Compile plans: read, compared with the run, refused when they were made for something else."""

from __future__ import annotations

import json
import logging
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cftdiag.diagnose import CAUSES
from cftdiag.plan import config_sha
from cftdiag.recipe.compile import compile_settings
from cftdiag.torch_settings import SOME_RELEASES
from trainer.config import TrainConfig
from trainer.plan import check_fingerprint, read_plan, warm

MODEL = {"hidden_size": 64, "model_type": "qwen3"}
PRINT: dict[str, Any] = {
    "torch": metadata.version("torch"),
    "transformers": metadata.version("transformers"),
    "config_sha": config_sha(MODEL),
    "attn": "sdpa",
    "dtype": "float32",
    "method": "osft",
    "ac": "none",
    "scope": "block",
    "world_size": 2,
    "compile_kwargs": {"fullgraph": True, "dynamic": True},
    "target": None,
    "depth": "joint",
}


def _regime(name: str, bounds: str, rows: int, length: int, variant: str) -> dict[str, Any]:
    return {
        "id": name,
        "bounds": [bounds],
        "representative": {"batch_size": rows, "length": length, "variant": variant},
        "variants": [variant],
    }


def _plan(path: Path, **values: Any) -> str:
    data = {
        "schema": "cftdiag.plan/1",
        "fingerprint": PRINT,
        "forecast": [],
        "settings": [
            {"key": "pad_to_multiple_of", "value": 16, "unsafe": False, "verified": True},
            {"key": "torch._dynamo.config.recompile_limit", "value": 17, "unsafe": True, "verified": None},
        ],
        "regimes": [
            _regime("a", "S < 512", 1, 264, "packed"),
            _regime("b", "S >= 512", 1, 520, "packed"),
            _regime("c", "S >= 2", 1, 600, ""),
            _regime("d", "S >= 2", 1, 608, "padded"),
            _regime("e", "B >= 2", 2, 640, "packed"),
        ],
    }
    path.write_text(json.dumps({**data, **values}))
    return str(path)


def test_settings_and_regimes_are_read(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json"))
    assert plan.options == {"pad_to_multiple_of": 16}
    assert plan.torch == {"torch._dynamo.config.recompile_limit": 17}
    assert plan.unsafe == ("torch._dynamo.config.recompile_limit",)
    assert plan.rows == ((264, "packed"), (520, "packed"), (600, "")), (
        "rows that a packed run cannot meet are left out"
    )


def test_a_plans_torch_settings_are_set_and_restored(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json"))
    before = torch._dynamo.config.recompile_limit
    with compile_settings("block", plan.torch) as done:
        assert torch._dynamo.config.recompile_limit == done["torch._dynamo.config.recompile_limit"] == 17
    assert torch._dynamo.config.recompile_limit == before
    for lacking in ("torch._dynamo.config.nope", "torch.no_such.config.x", "torch.compile"):
        with (
            pytest.raises(
                ValueError, match=r"the compile plan cannot be followed: .*(no setting|no torch setting)"
            ),
            compile_settings("block", {lacking: 1}),
        ):
            pass


def test_every_setting_that_a_proved_remedy_brings_into_a_plan_can_be_set() -> None:
    """A plan keeps the verified remedies' settings of torch, wherever in torch they are."""
    remedies = [remedy for cause in CAUSES.values() for remedy in cause.remedies]
    changes = {k: v for r in remedies for k, v in (r.change or {}).items() if k.startswith("torch.")}
    ignored = "torch._dynamo.config.ignore_logging_functions"
    there = {k: v for k, v in changes.items() if k not in SOME_RELEASES and "{" not in str(v)}
    assert "torch.fx.experimental._config.use_duck_shape" in there
    before = torch._dynamo.config.ignore_logging_functions
    with compile_settings("block", {**there, ignored: "logging.Logger.warning"}) as done:
        assert done.items() >= there.items()
        assert torch.fx.experimental._config.use_duck_shape is False
        assert torch._dynamo.config.ignore_logging_functions == {*before, logging.Logger.warning}
    assert torch.fx.experimental._config.use_duck_shape is True
    assert torch._dynamo.config.ignore_logging_functions == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": "other"}, "is no cftdiag.plan/1 object"),
        ({"settings": [{"key": "nope", "value": 1}]}, "sets 'nope', which this trainer does not have"),
        ({"regimes": [{"id": "a"}]}, "malformed plan: regimes"),
        ({"fingerprint": {}}, "fingerprint.torch is missing"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(_plan(tmp_path / "p.json", **values))


def _check(path: str, **run: Any) -> None:
    values: dict[str, Any] = {"osft": True, "compile_model": True}
    facts: dict[str, Any] = {
        "model_config": MODEL,
        "attn": "sdpa",
        "dtype": torch.float32,
        "device": "cpu",
        "world": 2,
    }
    check_fingerprint(read_plan(path), TrainConfig(**values | run.pop("config", {})), **facts | run)


@pytest.mark.parametrize(
    ("run", "field"),
    [
        ({"model_config": MODEL | {"hidden_size": 65}}, "config_sha"),
        ({"attn": "eager"}, "attn"),
        ({"dtype": torch.bfloat16}, "dtype"),
        ({"world": 4}, "world_size"),
        ({"config": {"osft": False}}, "method"),
        ({"config": {"objective": "dpo"}}, "objective"),
        ({"config": {"ac": "full"}}, "ac"),
        ({"config": {"compile_model": False, "compile_scope": "block+loss"}}, "scope"),
        ({"config": {"dynamic": "auto"}}, "compile_kwargs"),
    ],
)
def test_a_plan_for_something_else_names_the_field(tmp_path: Path, run: dict[str, Any], field: str) -> None:
    path = _plan(tmp_path / "p.json")
    _check(path)
    with pytest.raises(ValueError, match=f"plan .*p.json was made for {field} .*this run has"):
        _check(path, **run)


@pytest.mark.parametrize("field", ["torch", "transformers"])
def test_another_version_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match=f'was made for {field} "0.1"'):
        _check(_plan(tmp_path / "p.json", fingerprint=PRINT | {field: "0.1"}))


def test_a_plan_made_for_a_device_holds_on_that_device(tmp_path: Path) -> None:
    path = _plan(tmp_path / "p.json", fingerprint=PRINT | {"target": "h200", "depth": "codegen"})
    _check(path, device="NVIDIA H200")
    for other in ("NVIDIA H100 80GB HBM3", "cpu"):
        with pytest.raises(ValueError, match=f'was made for target "h200", this run has "{other}"'):
            _check(path, device=other)


def test_an_empty_plan_warms_nothing(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json", regimes=[], settings=[]))
    assert (plan.options, plan.torch, plan.unsafe, plan.rows) == ({}, {}, (), ())


@pytest.mark.parametrize("validates", [False, True])
def test_the_graphs_of_validation_are_warmed_where_there_is_one(tmp_path: Path, validates: bool) -> None:
    called: list[tuple[int, bool, bool]] = []

    class Model(torch.nn.Linear):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            called.append((input_ids.shape[1], self.training, torch.is_grad_enabled()))
            return super().forward(input_ids.float()[:, :4]).sum()

    model = Model(4, 1)
    objective = SimpleNamespace(
        collate=lambda row, samples, *, pad_id, varlen: {"input_ids": torch.zeros(1, row.length)}
    )
    program: Any = SimpleNamespace(model=model, device=torch.device("cpu"), objective=objective, varlen=False)
    plan: Any = SimpleNamespace(rows=((264, "packed"), (520, "packed")))
    warm(program, plan, validates=validates)
    trained = [(264, True, True), (520, True, True)]
    assert [one for one in called if one[1]] == trained and model.training and model.weight.grad is None
    assert [one for one in called if not one[1]] == (
        [(264, False, False), (520, False, False)] if validates else []
    )
