"""OSFT on a mixture of experts: eager, compiled, on two ranks, continued and exported, all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig

    from trainer import demo

    directory = tmp_path_factory.mktemp("moe")
    AutoConfig.for_model(
        "qwen3_moe", hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=272, num_experts=3, num_experts_per_tok=2, pad_token_id=0, eos_token_id=3,
        tie_word_embeddings=False, max_position_embeddings=1024,
    ).save_pretrained(directory)  # fmt: skip
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "data.jsonl", count=24)
    return directory


def values(moe: Path, out: Path, **more: Any) -> dict[str, Any]:
    return {
        "model_name_or_path": str(moe), "random_init": True, "data_path": str(moe / "data.jsonl"), "device": "cpu", "batch_size": 6,
        "max_tokens_per_gpu": 512, "max_steps": 4, "learning_rate": 1e-2, "osft": True, "osft_leak_every": 1, "loss_chunks": 1,
        "checkpoint_every": 2, "export": False, "output_dir": str(out), **more,
    }  # fmt: skip


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def figures(out: Path) -> list[float]:
    return [record[key] for record in records(out) for key in ("loss", "grad_norm", "grad_norm_raw")]


@pytest.fixture(scope="module")
def one(moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    trainer.run_training(values(moe, out, export=True))
    return out


def test_experts_are_decomposed_and_stay_orthogonal(one: Path) -> None:
    from trainer.checkpoints.layout import read_state

    ranks = read_state(one / "checkpoints" / "last").ranks
    assert (
        ranks["model.layers.0.mlp.experts.gate_up_proj"] == 24
        and ranks["model.layers.1.mlp.experts.down_proj"] == 12
    )
    assert all(record["leak"] < 1e-5 for record in records(one))
    assert all(record["grad_norm"] < record["grad_norm_raw"] for record in records(one))


def test_a_compiled_run_is_the_eager_one(one: Path, moe: Path, tmp_path: Path, fresh_dynamo: None) -> None:
    trainer.run_training(values(moe, tmp_path, compile_model=True, compile_backend="aot_eager"))
    assert figures(tmp_path) == pytest.approx(figures(one), rel=1e-4)
    assert [record["graphs"] for record in records(tmp_path)][1:] == [0, 0, 0]


@pytest.mark.everything("a start of torchrun; one rank, compiled and eager, stays")
def test_two_ranks_train_the_same(one: Path, moe: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(values(moe, tmp_path / "out")))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer", "--config", str(file)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert figures(tmp_path / "out") == pytest.approx(figures(one), rel=1e-3)
    assert all(record["leak"] < 1e-5 for record in records(tmp_path / "out"))
    assert "OSFT covers 9" in done.stderr and "outside of the blocks" in done.stderr


def test_a_continued_run_is_the_same_bit_for_bit(one: Path, moe: Path, tmp_path: Path) -> None:
    checkpoint = one / "checkpoints" / "step-00000002"
    trainer.run_training(values(moe, tmp_path, resume=str(checkpoint)))
    assert figures(tmp_path) == figures(one)[6:]


def test_the_export_is_a_plain_model_with_the_trained_weights(one: Path, moe: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer.export import export_checkpoint

    config = AutoConfig.from_pretrained(moe)
    export_checkpoint(one / "checkpoints" / "last", tmp_path / "hf")
    models = [
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (one / "hf", tmp_path / "hf")
    ]
    plain = AutoModelForCausalLM.from_config(config)
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        first, second = (model.eval()(ids).logits for model in models)
    assert torch.equal(first, second)
    assert set(models[0].state_dict()) == set(plain.state_dict())
