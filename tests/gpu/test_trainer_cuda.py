"""The trainer on one CUDA device with Inductor; skipped without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from trainer import demo

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    # Flash kernels want heads of at least 32.
    demo.config(num_hidden_layers=4, hidden_size=256, intermediate_size=512, head_dim=64).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "data.jsonl", count=96)
    return directory


def _train(tiny: Path, out: Path, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cuda", max_tokens_per_gpu=1024, batch_size=8,
        max_steps=6, learning_rate=1e-3, export=False, output_dir=str(out),
    )  # fmt: skip
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("values", [{}, {"osft": True}, {"lora": True}, {"ac": "full"}, {"ac": "selective"}], ids=str)
@pytest.mark.parametrize("scope", ["block", "block+loss", "model+loss"])
def test_scope_trains_as_eager_does(fresh_dynamo: None, tiny: Path, tmp_path: Path, scope: str, values: dict[str, Any]) -> None:
    eager = _train(tiny, tmp_path / "e", dtype="float32", **values)
    compiled = _train(tiny, tmp_path / "c", dtype="float32", compile_scope=scope, **values)
    for a, b in zip(compiled, eager, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-3)
    assert compiled[0]["graphs"] >= 1


def test_padded_packed_rows_do_not_recompile_in_bfloat16(fresh_dynamo: None, tiny: Path, tmp_path: Path) -> None:
    compiled = _train(tiny, tmp_path, compile_scope="block+loss", osft=True, max_steps=12)
    assert not [r for record in compiled for r in record["recompiles"]]
    assert compiled[-1]["loss"] < compiled[0]["loss"]


def test_varlen_is_sdpa_with_a_mask(tiny: Path, tmp_path: Path) -> None:
    masked = _train(tiny, tmp_path / "m", dtype="bfloat16", attn="sdpa")
    varlen = _train(tiny, tmp_path / "v", dtype="bfloat16", attn="varlen")
    for a, b in zip(masked, varlen, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-2)


def test_memory_is_told_once_after_the_first_step(tiny: Path, tmp_path: Path) -> None:
    records = _train(tiny, tmp_path, max_steps=2)
    assert 0 < records[0]["memory"]["peak"] < records[0]["memory"]["total"]
    assert "memory" not in records[1]


def test_chunks_bound_the_memory_of_the_loss() -> None:
    from trainer.loss import chunked_loss, cross_entropy_sum

    hidden = torch.randn(1, 8192, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 65536, (1, 8192), device="cuda")
    head = torch.nn.Linear(256, 65536, bias=False, device="cuda", dtype=torch.bfloat16)
    peaks = {}
    for chunks in (1, 8):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        chunked_loss(hidden, labels, head, cross_entropy_sum, chunks).backward()
        peaks[chunks] = torch.cuda.max_memory_allocated() - before
        hidden.grad = head.weight.grad = None
    assert peaks[8] < peaks[1] / 4
