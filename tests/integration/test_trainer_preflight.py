"""The check of a configuration and the run of it agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trainer
from trainer import demo
from trainer.preflight import check


@pytest.mark.slow
def test_the_check_says_what_the_run_does(fresh_dynamo: None, tmp_path: Path) -> None:
    demo.config(num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1).save_pretrained(tmp_path)
    demo.tokenizer().save_pretrained(tmp_path)
    demo.write_data(tmp_path / "data.jsonl", count=24)
    config = trainer.TrainConfig(
        model_name_or_path=str(tmp_path), random_init=True, data_path=str(tmp_path / "data.jsonl"), device="cpu", max_tokens_per_gpu=512,
        batch_size=6, max_steps=3, export=False, output_dir=str(tmp_path / "out"), osft=True, compile_model=True, compile_backend="aot_eager",
    )  # fmt: skip
    report = check(config, world=1, verify=False).to_dict()
    trainer.run_training(config)
    ran = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert report["verdict"] == "viable"
    assert [(b["fqn"], b["graphs"], b["recompiles"]) for b in report["blocks"]] == [(f"model.layers.{i}", 1, 0) for i in range(2)]
    assert sum(r["graphs"] for r in ran) == 1 and not any(r["recompiles"] for r in ran)
