"""Compile plans: read, compared with the run, refused when they were made for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.compile import compile_settings
from trainer.config import TrainConfig
from trainer.plan import Plan, check_fingerprint, read_plan


def _plan(path: Path, **values: Any) -> str:
    data = {
        "schema": "cftdiag.plan/1",
        "fingerprint": {"attn": "sdpa", "dtype": "float32", "method": "osft", "ac": "none", "scope": "block", "world_size": 2},
        "settings": [
            {"key": "pad_to_multiple_of", "value": 16, "unsafe": False, "verified": True},
            {"key": "torch._dynamo.config.recompile_limit", "value": 17, "unsafe": True, "verified": None},
        ],
        "regimes": [
            {"id": "a", "bounds": "S < 512", "representative": {"batch_size": 1, "length": 264}},
            {"id": "b", "bounds": "S >= 512", "representative": {"batch_size": 1, "length": 520}},
            {"id": "c", "bounds": "B > 1", "representative": {"batch_size": 2, "length": 640}},
        ],
    }
    path.write_text(json.dumps({**data, **values}))
    return str(path)


def test_settings_and_regimes_are_read(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json"))
    assert plan.options == {"pad_to_multiple_of": 16}
    assert plan.torch == {"torch._dynamo.config.recompile_limit": 17}
    assert plan.unsafe == ("torch._dynamo.config.recompile_limit",)
    assert plan.lengths == (264, 520)


def test_a_plans_torch_settings_are_set_and_restored(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json"))
    before = torch._dynamo.config.recompile_limit
    with compile_settings("block", plan.torch) as done:
        assert torch._dynamo.config.recompile_limit == done["torch._dynamo.config.recompile_limit"] == 17
    assert torch._dynamo.config.recompile_limit == before
    with pytest.raises(ValueError, match=r"which torch .* does not have"), compile_settings("block", {"torch._dynamo.config.nope": 1}):
        pass


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": "other"}, "is not a cftdiag.plan/1 file"),
        ({"settings": [{"key": "nope", "value": 1}]}, "sets 'nope', which this trainer does not have"),
        ({"regimes": [{"id": "a"}]}, "is not a cftdiag.plan/1 file"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plan(_plan(tmp_path / "p.json", **values))


def test_another_fingerprint_is_named(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json"))
    config = TrainConfig(osft=True, compile_model=True)
    check_fingerprint(plan, config, attn="sdpa", dtype=torch.float32, world=2)
    with pytest.raises(ValueError, match="made for world_size 2, this run has 4"):
        check_fingerprint(plan, config, attn="sdpa", dtype=torch.float32, world=4)
    with pytest.raises(ValueError, match="made for method 'osft', this run has 'full'"):
        check_fingerprint(plan, TrainConfig(compile_model=True), attn="sdpa", dtype=torch.float32, world=2)


def test_an_empty_plan_warms_nothing(tmp_path: Path) -> None:
    plan = read_plan(_plan(tmp_path / "p.json", regimes=[], settings=[], fingerprint={}))
    assert plan == Plan(fingerprint={}, options={}, torch={}, unsafe=(), lengths=())
