"""A plan is written, read and refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cftdiag.plan import FINGERPRINT, SCHEMA, Plan, Regime, Setting, config_sha, load_plan, make_plan

PRINT: dict[str, Any] = dict.fromkeys(FINGERPRINT, "x") | {
    "torch": "2.13.0",
    "attn": "sdpa",
    "world_size": 8,
    "compile_kwargs": {"dynamic": True, "fullgraph": True},
    "target": None,
}
FORECAST = {
    "regimes": [
        {
            "id": "r1",
            "bounds": ["B >= 2", "B*S < 1280"],
            "representative": {"batch_size": 2, "length": 520, "variant": ""},
            "variants": [""],
        },
        {
            "id": "r2",
            "bounds": ["2 <= S <= 1024"],
            "representative": {"batch_size": 1, "length": 777, "variant": "padded"},
            "variants": ["padded"],
        },
    ],
    "warmed": {
        "steps": [
            {"step": 0, "regime": "r1", "cause": None},
            {"step": 9, "regime": "r2", "cause": "seq_len", "length": 4},
        ]
    },
}


def plan() -> Plan:
    return make_plan(
        PRINT, FORECAST, [Setting(key="torch._inductor.config.x", value=True, unsafe=True, verified=True)]
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().write(path)
    found = load_plan(path, PRINT)
    assert found == plan()
    data = json.loads(path.read_text())
    assert data["schema"] == SCHEMA
    assert set(data) == {"schema", "fingerprint", "settings", "regimes", "forecast"}
    assert data["forecast"] == [{"step": 9, "regime": "r2", "cause": "seq_len"}]
    assert data["regimes"][0]["representative"] == {"batch_size": 2, "length": 520, "variant": ""}
    assert set(data["fingerprint"]) == set(FINGERPRINT)


def test_regimes_answer_for_shapes() -> None:
    found = plan()
    assert found.warm == ((2, 520, ""), (1, 777, "padded"))
    assert [s.key for s in found.unsafe] == ["torch._inductor.config.x"]
    assert found.regime_of(2, 600) == "r1"
    assert found.regime_of(2, 640) == "r2"
    assert found.regime_of(2, 640, "") is None
    assert found.regime_of(1, 2000) is None


@pytest.mark.parametrize("field", FINGERPRINT)
def test_a_plan_for_another_configuration_names_the_field(tmp_path: Path, field: str) -> None:
    path = tmp_path / "plan.json"
    plan().write(path)
    other = PRINT | {field: {"dynamic": False}}
    with pytest.raises(ValueError, match=f"was made for {field} ") as caught:
        load_plan(path, other)
    assert (
        "\n" not in str(caught.value)
        and "cftdiag check --plan" in str(caught.value)
        and "plan.json" in str(caught.value)
    )


def test_only_the_fields_given_are_compared_and_unknown_ones_refused() -> None:
    plan().check({"attn": "sdpa"})
    plan().check({"compile_kwargs": {"fullgraph": True, "dynamic": True}})
    with pytest.raises(ValueError, match="'attention' is no field"):
        plan().check({"attention": "sdpa"})
    with pytest.raises(ValueError, match="fingerprint needs config_sha"):
        make_plan({k: v for k, v in PRINT.items() if k != "config_sha"}, FORECAST)


def broken(**change: Any) -> dict[str, Any]:
    return {**plan().to_dict(), **change}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{", "is not JSON"),
        ([], "is no cftdiag.plan/1"),
        (broken(schema="cftdiag.plan/9"), "schema 'cftdiag.plan/9'"),
        ({"schema": SCHEMA}, "fingerprint is missing"),
        (broken(fingerprint=[]), "fingerprint is"),
        (broken(fingerprint={}), "fingerprint.torch is missing"),
        (broken(settings=[{"value": 1}]), r"settings\[0\].key"),
        (broken(settings={}), "settings is"),
        (
            broken(
                regimes=[
                    {
                        "id": "r",
                        "bounds": ["__import__('os')"],
                        "representative": {"batch_size": 1, "length": 2},
                    }
                ]
            ),
            r"regimes\[0\].bounds",
        ),
        (broken(regimes=[{"id": "r", "bounds": "S"}]), r"regimes\[0\].bounds"),
        (broken(regimes=[{"id": "r", "bounds": []}]), r"regimes\[0\].representative"),
        (
            broken(regimes=[{"id": "r", "bounds": [], "representative": {"batch_size": 1, "length": -2}}]),
            r"regimes\[0\].representative.length is -2",
        ),
        (broken(forecast=[3]), r"forecast\[0\]"),
    ],
)
def test_malformed_plans_name_the_field(tmp_path: Path, data: Any, words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ValueError, match=words) as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the plan"):
        load_plan(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="cannot write"):
        plan().write(tmp_path / "no" / "plan.json")


def test_the_config_hash_sees_what_changes_graphs_and_nothing_else() -> None:
    config = {
        "hidden_size": 64,
        "layer_types": ["full"],
        "rope": {"theta": 1e4},
        "_name_or_path": "/a",
        "transformers_version": "5.1",
    }
    assert config_sha(config) == config_sha(
        config | {"_name_or_path": "/b", "transformers_version": "5.2", "_attn_implementation": "eager"}
    )
    assert config_sha(config) == config_sha(dict(reversed(config.items())))
    assert config_sha(config) != config_sha(config | {"hidden_size": 65})
    assert config_sha(config) != config_sha(config | {"rope": {"theta": 2e4}})

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return dict(config)

    assert config_sha(Config()) == config_sha(config)


def test_a_plan_is_read_without_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python("import sys, cftdiag.plan; assert 'torch' not in sys.modules")


def test_regime_order_decides_between_overlapping_regions() -> None:
    a = Regime(id="a", bounds=("S == 8",), representative=(1, 8, ""))
    b = Regime(id="b", bounds=("S >= 2",), representative=(1, 9, ""))
    assert Plan(fingerprint=PRINT, regimes=(a, b)).regime_of(1, 8) == "a"
    assert Plan(fingerprint=PRINT, regimes=(b, a)).regime_of(1, 8) == "b"
