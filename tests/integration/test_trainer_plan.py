"""A compile plan from the check of the same model: its regimes are compiled before step 1 and nothing after."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import trainer
from cftdiag.check import CheckOptions, run_check
from cftdiag.plan import Setting, load_plan
from trainer import demo
from trainer.config import TrainConfig
from trainer.data import open_data

UNSAFE = "torch._inductor.config.unsafe_skip_cache_dynamic_shape_guards"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "data.jsonl", count=48)
    return directory


def _config(tiny: Path, out: Path, **values: Any) -> TrainConfig:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=4,
        max_steps=8, export=False, output_dir=str(out), osft=True, compile_model=True, compile_backend="aot_eager", dynamic="auto",
    )  # fmt: skip
    return TrainConfig(**{**base, **values})


@pytest.fixture(scope="module")
def plan(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the check from the lengths of this data."""
    directory = tmp_path_factory.mktemp("plan")
    config = _config(tiny, directory)
    data = open_data(config, demo.tokenizer(), vocabulary=272, world=1)
    return _plan(tiny, directory, [sample.length for sample in data.train.samples])


@pytest.fixture(scope="module")
def short_plan(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one regime, for tests that do not come to its use."""
    return _plan(tiny, tmp_path_factory.mktemp("short"), [200] * 4, depth="trace")


def _plan(tiny: Path, directory: Path, of: list[int], *, depth: str = "joint") -> Path:
    """What the check plans for these lengths, with one unsafe setting added."""
    lengths = directory / "lengths.txt"
    lengths.write_text("".join(f"{length}\n" for length in of))
    report = run_check(
        CheckOptions(
            model=str(tiny), data=str(lengths), packed=True, max_tokens_per_gpu=512, batch_size=4, shuffle_seed=42, dtype="float32",
            dynamic="auto", method="osft",
            transform="trainer.preflight:as_method", verify=False, depth=depth,
            torch_config={"torch._dynamo.config.specialize_float": True},
        )
    )  # fmt: skip
    assert report.plan is not None and report.plan.regimes
    made = dataclasses.replace(
        report.plan, settings=(*report.plan.settings, Setting(key=UNSAFE, value=True, unsafe=True))
    )
    made.write(directory / "plan.json")
    return directory / "plan.json"


def _run(config: TrainConfig) -> list[dict[str, Any]]:
    trainer.run_training(config)
    return [json.loads(line) for line in (Path(config.output_dir) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.everything(
    "45 s; warming regimes is held in test_forecast_truth.py, the plan's rules in unit/test_trainer_plan_rules.py"
)
def test_regimes_are_compiled_before_the_first_step_and_nothing_after(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cold = _run(_config(tiny, tmp_path / "cold"))
    capsys.readouterr()
    warmed = _run(_config(tiny, tmp_path / "warm", compile_plan=str(plan)))
    assert sum(r["graphs"] for r in cold) >= 2 and any(r["recompiles"] for r in cold), (
        "without the plan something compiles in training"
    )
    assert not any(r["graphs"] or r["recompiles"] or r["compile_seconds"] for r in warmed)
    assert f"warmed {len(load_plan(plan).warm)} regimes in " in capsys.readouterr().err
    # Warming changes neither weights nor random numbers.
    assert [r["loss"] for r in warmed] == pytest.approx([r["loss"] for r in cold], rel=1e-5)
    noted = json.loads((tmp_path / "warm" / "run" / "run.json").read_text())["settings"]
    assert noted["unsafe"] == [UNSAFE] and noted["torch"][UNSAFE] is True


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"osft": False}, "method"),
        ({"attn": "eager"}, "attn"),
        ({"ac": "full"}, "ac"),
        ({"dynamic": "true"}, "compile_kwargs"),
        ({"compile_model": False, "compile_scope": "block+loss"}, "scope"),
        ({"train_dtype": "float64"}, "dtype"),
    ],
)
def test_a_plan_for_something_else_is_refused_before_anything_is_compiled(
    tiny: Path, tmp_path: Path, short_plan: Path, values: Any, field: str
) -> None:
    with pytest.raises(ValueError, match=f"was made for {field} .*make the plan again"):
        _run(_config(tiny, tmp_path, compile_plan=str(short_plan), **values))


def test_a_plan_for_another_model_is_refused(tiny: Path, tmp_path: Path, short_plan: Path) -> None:
    demo.config(
        num_hidden_layers=3,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(tmp_path)
    demo.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was made for config_sha"):
        _run(_config(tiny, tmp_path / "out", compile_plan=str(short_plan), model_name_or_path=str(tmp_path)))


@pytest.mark.everything(
    "40 s each; that plans are followed stays above, formulas of a cut row in unit/test_forecast_bounds.py"
)
@pytest.mark.parametrize("objective", ["dpo", "grpo"])
def test_a_plan_of_an_objective_is_warmed_and_nothing_compiles_after(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, objective: str
) -> None:
    """The loss is cut into chunks of the row, and of answers that are sampled only the longest lengths are known."""
    {"dpo": demo.write_pairs, "grpo": demo.write_prompts}[objective](tmp_path / "rows.jsonl", count=24)
    values: dict[str, Any] = {
        "objective": objective, "data_path": str(tmp_path / "rows.jsonl"), "osft": False, "compile_model": False, "dynamic": "true",
        "compile_scope": "block+loss", "compile_backend": "eager", "batch_size": 8, "max_steps": 3,
    }  # fmt: skip
    rows, longest = 8, 0
    if objective == "grpo":
        values |= {
            "reward": "trainer.demo:reward",
            "grpo_completion_tokens": 16,
            "grpo_iterations": 2,
            "grpo_generations": 4,
        }
        rows, longest = 32, 16
    config = _config(tiny, tmp_path, **values)
    data = open_data(config, demo.tokenizer(), vocabulary=272, world=1)
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("".join(f"{s.length + longest}\n" * (rows // 8) for s in data.train.samples))
    report = run_check(
        CheckOptions(
            model=str(tiny), data=str(lengths), packed=True, max_tokens_per_gpu=512, batch_size=rows, shuffle_seed=42, dtype="float32",
            objective=objective, objective_from="trainer.preflight:as_objective", compile_scope="block+loss", verify=False, depth="trace",
        )
    )  # fmt: skip
    assert report.plan is not None and report.plan.regimes, report.undetermined
    report.plan.write(tmp_path / "plan.json")
    records = _run(
        dataclasses.replace(
            config, compile_plan=str(tmp_path / "plan.json"), output_dir=str(tmp_path / "out")
        )
    )
    assert not any(r["graphs"] or r["recompiles"] for r in records)
    assert len({n for r in records for micro in r["lengths"] for n in micro}) >= 2
