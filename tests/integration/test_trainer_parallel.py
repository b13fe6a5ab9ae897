"""HSDP: two replicas of two shards train as one rank does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.parallel_worker import METHODS, train
from tests.warm import Warm


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    from trainer import demo

    out = tmp_path_factory.mktemp("hsdp")
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(out / "model")
    demo.tokenizer().save_pretrained(out / "model")
    demo.write_data(out / "data.jsonl", count=24)
    done = warm.run(Path(__file__).with_name("parallel_worker.py"), str(out), ranks=4)
    assert "mesh (2, 2)" in done.stderr
    return out


def _records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_two_replicas_of_two_shards_train_as_one_rank(four: Path, tmp_path: Path, method: str) -> None:
    train(method, four, output_dir=str(tmp_path))
    one, hsdp = _records(tmp_path), _records(four / f"{method}4")
    assert [len(r["lengths"][0]) for r in hsdp] == [4, 4, 4], "four ranks have rows"
    assert method == "osft" or max(len(r["lengths"]) for r in hsdp) > 1, "gradients of microsteps add up"
    for a, b in zip(hsdp, one, strict=True):
        for key in ("loss", "grad_norm", "grad_norm_raw", "tokens"):
            assert a[key] == pytest.approx(b[key], rel=1e-7), (key, a["step"])
    if method == "osft":
        # The frozen directions are gathered over the shards of one replica: over all four ranks they would be
        # there twice.
        assert all(r["leak"] < 1e-12 for r in hsdp)
        assert all(r["grad_norm"] < r["grad_norm_raw"] for r in hsdp)
