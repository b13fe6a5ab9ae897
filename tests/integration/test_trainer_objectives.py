"""Every objective trains under every compile scope as eager does, goes on bit for bit, and is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from tests.warm import Warm
from trainer import demo
from trainer.config import TrainConfig

#: Graphs by scope: blocks of one kind share one; a loss of pairs has one for a chunk and one for the row.
GRAPHS = {"block": 1, "loss": 2, "block+loss": 3, "model": 1, "model+loss": 1}
OBJECTIVES: dict[str, dict[str, Any]] = {"dpo": {"objective": "dpo"}}
EXACT = ("step", "loss", "grad_norm", "grad_norm_raw", "val_loss", "accuracy", "margin", "lengths")


@pytest.fixture(scope="module")
def files(tiny: Path) -> Path:
    demo.write_pairs(tiny / "dpo.jsonl", count=24)
    demo.write_texts(tiny / "pretrain.jsonl", count=24)
    return tiny


def train(files: Path, out: Path, objective: str, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(files), random_init=True, data_path=str(files / f"{objective}.jsonl"), device="cpu", max_tokens_per_gpu=512,
        batch_size=6, max_steps=3, learning_rate=1e-2, export=False, loss_chunks=2, train_dtype="float64", compile_backend="eager",
        output_dir=str(out), **OBJECTIVES.get(objective, {"objective": objective}),
    )  # fmt: skip
    torch._dynamo.reset()
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


_SCOPE = pytest.mark.everything("the parts apart and the model in one stay; these are the same code")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param("block", marks=_SCOPE),
        pytest.param("loss", marks=_SCOPE),
        "block+loss",
        pytest.param("model", marks=_SCOPE),
        "model+loss",
    ],
)
def test_an_objective_trains_as_eager_does_under(
    files: Path, tmp_path: Path, objective: str, scope: str
) -> None:
    backend = "aot_eager" if scope == "block+loss" else "eager"
    eager = train(files, tmp_path / "e", objective)
    compiled = train(files, tmp_path / "c", objective, compile_scope=scope, compile_backend=backend)
    for one, other in zip(compiled, eager, strict=True):
        for key in ("loss", "grad_norm"):
            assert one[key] == pytest.approx(other[key], rel=1e-7), (key, one["step"])
    assert [r["graphs"] for r in compiled] == [GRAPHS[scope], 0, 0]
    assert not any(r["recompiles"] for r in compiled)
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) >= 2


@pytest.mark.parametrize(
    ("objective", "values"),
    [
        ("dpo", {"dpo_loss": "sigmoid"}),
        ("dpo", {"dpo_loss": "ipo", "lora": True}),
        ("dpo", {"dpo_loss": "orpo"}),
    ],
)
def test_what_is_preferred_becomes_likelier(
    files: Path, tmp_path: Path, objective: str, values: dict[str, Any]
) -> None:
    """Twelve steps on two batches: the margin grows. Where there is a reference it begins at zero."""
    records = train(
        files,
        tmp_path,
        objective,
        max_steps=12,
        max_epochs=12,
        batch_size=24,
        max_tokens_per_gpu=4096,
        **values,
    )
    if values["dpo_loss"] != "orpo":
        assert abs(records[0]["margin"]) < 1e-9 and records[-1]["accuracy"] > 0.6
    assert records[-1]["margin"] > records[0]["margin"] and records[-1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize(("objective", "values"), [("dpo", {"compile_scope": "block+loss"})])
def test_an_objective_goes_on_bit_for_bit(
    files: Path, tmp_path: Path, objective: str, values: dict[str, Any]
) -> None:
    demo.config(
        num_hidden_layers=1, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
        attention_dropout=0.1,
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    demo.tokenizer().save_pretrained(tmp_path / "model")
    values = {
        **values, "model_name_or_path": str(tmp_path / "model"), "validation_split": 0.25, "validate_every": 2, "max_steps": 5,
        "train_dtype": "float32",
    }  # fmt: skip
    whole = train(files, tmp_path / "whole", objective, **values)
    train(files, tmp_path / "part", objective, checkpoint_every=2, **values)
    again = train(
        files,
        tmp_path / "part",
        objective,
        **values,
        resume=str(tmp_path / "part" / "checkpoints" / "step-00000004"),
    )
    wanted = [{key: record.get(key) for key in EXACT} for record in whole]
    assert [{key: record.get(key) for key in EXACT} for record in again] == wanted
    assert "val_loss" in whole[3] and whole[3]["loss"] != whole[1]["loss"]


def test_two_ranks_learn_what_one_does(files: Path, tmp_path: Path, warm: Warm) -> None:
    """Full and LoRA, the reference's log-probabilities made by both ranks; what is exported is one model."""
    runs = [
        dict(
            model_name_or_path=str(files), random_init=True, data_path=str(files / "dpo.jsonl"), device="cpu", max_tokens_per_gpu=512,
            batch_size=6, max_steps=3, learning_rate=1e-2, train_dtype="float64", objective="dpo", method=method, export=method == "lora",
            compile_scope="block+loss", compile_backend="eager", output_dir=str(tmp_path / method),
        )
        for method in ("full", "lora")
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    warm.run(Path(__file__).with_name("resume_worker.py"), str(tmp_path / "runs.json"), ranks=2)
    for method in ("full", "lora"):
        two = [json.loads(line) for line in (tmp_path / method / "metrics.jsonl").read_text().splitlines()]
        one = train(files, tmp_path / f"{method}1", "dpo", method=method)
        for a, b in zip(two, one, strict=True):
            for key in ("loss", "grad_norm", "accuracy", "margin"):
                assert a[key] == pytest.approx(b[key], rel=1e-7, abs=1e-9), (method, key, a["step"])
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "lora" / "hf")
    assert all(bool(torch.isfinite(p).all()) for p in exported.parameters())


def test_texts_are_learnt_whole(files: Path, tmp_path: Path) -> None:
    """Pre-training is supervised fine-tuning on the same rows, to the bit; conversations are no rows of it."""
    texts = train(files, tmp_path / "a", "pretrain")
    same = train(files, tmp_path / "b", "sft", data_path=str(files / "pretrain.jsonl"))
    assert [r["loss"] for r in texts] == [r["loss"] for r in same]
    with pytest.raises(
        ValueError, match=r"data\.jsonl:1: a row of objective pretrain has `text`; its keys are messages"
    ):
        train(files, tmp_path / "c", "pretrain", data_path=str(files / "data.jsonl"))


@pytest.mark.parametrize(("objective", "scope"), [("dpo", "block+loss"), ("dpo", "model+loss")])
def test_the_preflight_compiles_what_the_run_does(
    files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], objective: str, scope: str
) -> None:
    from cftdiag.check import CheckOptions  # noqa: F401 - imported before the check's children are forked
    from trainer.preflight import check

    values = dict(
        model_name_or_path=str(files), random_init=True, data_path=str(files / f"{objective}.jsonl"), device="cpu", max_tokens_per_gpu=512,
        batch_size=6, max_steps=3, loss_chunks=2, compile_scope=scope, compile_backend="eager", output_dir=str(tmp_path),
        **OBJECTIVES[objective],
    )  # fmt: skip
    report = check(TrainConfig(**values), world=1, verify=False).to_dict()
    assert report["verdict"] == "viable" and not report["findings"]
    assert len(report["compiles"]) == GRAPHS[scope]
    assert report["subject"]["objective"] == objective


def test_a_compiled_loss_of_pairs_that_is_another_is_seen(files: Path) -> None:
    from trainer.loss_check import compare_loss
    from trainer.model import open_source

    config = TrainConfig(
        model_name_or_path=str(files),
        objective="dpo",
        compile_scope="loss",
        compile_backend="eager",
        loss_chunks=2,
    )
    wanted = dict(device=torch.device("cpu"), dtype=torch.float32)
    model_config = open_source(config).config

    def right(graph: Any, inputs: Any) -> Any:
        return graph.forward

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(2 * t if t.is_floating_point() else t for t in graph.forward(*args))

    assert compare_loss(config, model_config, right, **wanted) == []
    assert "differs from eager's" in compare_loss(config, model_config, wrong, **wanted)[0]
