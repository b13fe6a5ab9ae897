"""The three ways to ask about one training agree: its configuration, a model with a method and an objective, and the
command that trains.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer import demo

Command = Callable[..., Any]

CASES = [
    ("qlora", "sft", "block+loss"),
    ("qat", "sft", "model"),
    ("full", "dpo", "loss"),
    ("lora", "dpo", "block+loss"),
    ("full", "grpo", "model+loss"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routes")
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "train.jsonl", count=16)
    demo.write_pairs(directory / "pairs.jsonl", count=16)
    demo.write_prompts(directory / "prompts.jsonl", count=16)
    return directory


def told(report: dict[str, Any]) -> dict[str, Any]:
    """What the ways must have in common."""
    return {
        "verdict": report["verdict"],
        "graphs": Counter({b["fqn"]: b["graphs"] for b in report["blocks"] if b["graphs"]}),
        "compiled": Counter(c["block"] for c in report["compiles"] if c["cause"] in (None, "first")),
        "recompiles": sum(b["recompiles"] for b in report["blocks"]),
        "findings": [(f["kind"], f["cause"]) for f in report["findings"]],
    }


@pytest.mark.everything(
    "a minute each: three checks; what a run compiles is held against one of them in test_trainer_preflight.py and "
    "test_trainer_objectives.py"
)
@pytest.mark.parametrize(("method", "objective", "scope"), CASES)
def test_configuration_words_and_command_agree(
    cftdiag_command: Command, model: Path, tmp_path: Path, method: str, objective: str, scope: str
) -> None:
    values: dict[str, Any] = {
        "model_name_or_path": str(model), "random_init": True, "data_path": str(demo.data_of(model, objective)), "device": "cpu",
        "max_tokens_per_gpu": 512, "batch_size": 6, "max_steps": 2, "method": method, "objective": objective, "compile_scope": scope,
        "export": False, "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    if objective == "grpo":
        values |= {"reward": "trainer.demo:reward", "grpo_completion_tokens": 8, "grpo_generations": 4}
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(values))
    words = [
        "--method",
        method,
        "--objective",
        objective,
        "--compile-scope",
        scope,
        "--packed",
        "--lengths",
        "360,416",
    ]
    ways = {
        "configuration": ["--config", str(config)],
        "words": ["--model", str(model), "--dtype", "float32", *words],
        "command": ["--steps", "2", "--", sys.executable, "-m", "trainer", "--config", str(config)],
    }
    found = {}
    for name, arguments in ways.items():
        file = tmp_path / f"{name}.json"
        # an hour for what hangs: three checks of a loaded machine take their time
        done = cftdiag_command(
            "check", "-q", "--no-verify", "--timeout", "3600", "--json", str(file), *arguments
        )
        assert done.returncode == 0, (name, done.stderr, done.stdout)
        found[name] = told(json.loads(file.read_text()))
    assert found["words"] == found["configuration"] == found["command"]
    assert found["words"]["verdict"] == "viable" and sum(found["words"]["compiled"].values()) >= 1


@pytest.mark.everything("two minutes: a check and a rehearsal for a GPU; each half has tests of its own")
def test_configuration_and_command_hold_the_same(
    cftdiag_command: Command, model: Path, tmp_path: Path
) -> None:
    """Memory of a rank of two: by the formula of the configuration, and by the tensors of the rehearsed trainer."""
    values: dict[str, Any] = {
        "model_name_or_path": str(model), "random_init": True, "data_path": str(demo.data_of(model, "sft")),
        "max_tokens_per_gpu": 512, "batch_size": 6, "max_steps": 3, "compile_scope": "block+loss", "export": False,
        "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(values))
    ways = {
        "configuration": ["--config", str(config)],
        "command": ["--steps", "3", "--", sys.executable, "-m", "trainer", "--config", str(config)],
    }
    found = {}
    for name, arguments in ways.items():
        file = tmp_path / f"{name}.json"
        done = cftdiag_command(
            "check", "--target", "h200", "--fit", "--world-size", "2", "--no-verify", "--timeout", "3600", "--json", str(file), *arguments
        )  # fmt: skip
        assert done.returncode == 0, (name, done.stderr, done.stdout)
        found[name] = json.loads(file.read_text())["payoff"]
    held, counted = found["command"]["memory"]["compiled"], found["configuration"]["memory"]["compiled"]
    for part in ("parameters", "optimizer"):
        assert held[part] == pytest.approx(counted[part], rel=0.02), part
    [*_, largest] = sorted(found["command"]["batches"], key=lambda at: at[1])
    share = largest[1] / found["configuration"]["length"]
    # what is kept grows with the length, masks with its square
    assert 0.9 * counted["saved"] * share**2 < held["kept_for_backward"] < 1.1 * counted["saved"] * share
    assert counted["longest_row"] > found["configuration"]["length"]
