"""The trainer on one CUDA device with Inductor, as tests/integration holds it on CPU; skipped without one."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from trainer import demo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    # Flash kernels want heads of at least 32.
    demo.config(num_hidden_layers=4, hidden_size=256, intermediate_size=512, head_dim=64).save_pretrained(
        directory
    )
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


@pytest.fixture(scope="module")
def eager(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses of the eager run with some options in float32, each trained once."""

    @functools.cache
    def of(options: tuple[tuple[str, Any], ...]) -> tuple[float, ...]:
        return tuple(
            r["loss"]
            for r in _train(tiny, tmp_path_factory.mktemp("eager"), dtype="float32", **dict(options))
        )

    return lambda values: of(tuple(values.items()))


@pytest.mark.parametrize(
    ("scope", "graphs", "values"),
    [
        ("block", 1, {}),
        ("loss", 1, {}),
        ("block+loss", 2, {}),
        ("model", 1, {}),
        ("model+loss", 1, {}),
        ("block", 1, {"ac": "full"}),
        ("block", 1, {"ac": "selective"}),
        ("block", 1, {"lora": True}),
        ("block+loss", 2, {"osft": True}),
    ],
    ids=str,
)
def test_scope_trains_as_eager_does(
    fresh_dynamo: None,
    tiny: Path,
    tmp_path: Path,
    eager: Any,
    scope: str,
    graphs: int,
    values: dict[str, Any],
) -> None:
    compiled = _train(tiny, tmp_path, dtype="float32", compile_scope=scope, **values)
    assert [r["loss"] for r in compiled] == pytest.approx(eager(values), rel=2e-3)
    assert [r["graphs"] for r in compiled] == [graphs, 0, 0, 0, 0, 0]
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) >= 3
    assert not any(r["recompiles"] for r in compiled)


def test_padded_packed_rows_do_not_recompile_in_bfloat16(
    fresh_dynamo: None, tiny: Path, tmp_path: Path
) -> None:
    compiled = _train(tiny, tmp_path, compile_scope="block+loss", osft=True, osft_leak_every=1, max_steps=12)
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) > 5
    assert not [r for record in compiled for r in record["recompiles"]]
    assert compiled[-1]["loss"] < compiled[0]["loss"]
    # Parameters are kept in float32, so that the leak is rounding of float32, whatever forward runs in.
    assert all(r["leak"] < 1e-5 for r in compiled)
    assert all(r["grad_norm"] < r["grad_norm_raw"] for r in compiled)


@pytest.mark.parametrize("attn", ["varlen", "flex_attention", "eager"])
def test_attention_trains_as_sdpa_with_a_mask(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, attn: str
) -> None:
    masked = _train(tiny, tmp_path / "m", dtype="bfloat16", attn="sdpa", max_steps=4)
    other = _train(tiny, tmp_path / "o", dtype="bfloat16", attn=attn, max_steps=4)
    for a, b in zip(masked, other, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-2)


@pytest.mark.parametrize("attn", ["sdpa", "varlen", "flex_attention"])
def test_the_first_document_has_no_influence_on_the_second(fresh_dynamo: None, tiny: Path, attn: str) -> None:
    from array import array

    from cftdiag.recipe.packing import Row
    from trainer.batch import collate, to_device
    from trainer.config import TrainConfig
    from trainer.distributed import process_group
    from trainer.program import build
    from trainer.records import IGNORE, Tokens

    class Documents:
        def __init__(self) -> None:
            first = Tokens(input_ids=array("q", range(10, 60)), labels=array("q", [IGNORE] * 50))
            self.tokens = [
                first,
                Tokens(input_ids=array("q", range(70, 130)), labels=array("q", range(70, 130))),
            ]
            self.samples = [t.sample(i + 1) for i, t in enumerate(self.tokens)]

        def __getitem__(self, index: int) -> Tokens:
            return self.tokens[index]

    config = TrainConfig(
        model_name_or_path=str(tiny),
        random_init=True,
        attn=attn,
        device="cuda",
        dtype="bfloat16",
        train_dtype="bfloat16",
    )
    with process_group("cuda") as ranks, torch.no_grad():
        program = build(config, device=ranks.device)
        batch = to_device(
            collate(Row(samples=(0, 1), length=128), Documents(), pad_id=0, varlen=program.varlen),
            ranks.device,
        )

        def loss(position: int | None) -> float:
            ids = batch["input_ids"].clone()
            if position is not None:
                ids[0, position] += 1
            return program.model(**{**batch, "input_ids": ids}).item()

        assert [loss(position) for position in (0, 20, 49)] == [loss(None)] * 3
        assert loss(60) != loss(None), "the second document's own tokens must matter"


def test_preflight_profile_and_cache_on_the_device(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values: dict[str, Any] = {
        "compile_scope": "block+loss",
        "compile_cache": str(tmp_path / "artifacts"),
        "max_steps": 3,
    }
    records = _train(tiny, tmp_path / "o", preflight=True, profile_steps="2-2", **values)
    said = capsys.readouterr().err
    assert "preflight: viable" in said and "saved" in said
    assert [r["graphs"] for r in records] == [2, 0, 0]
    [file] = (tmp_path / "o" / "profile").iterdir()
    events = json.loads(file.read_text())["traceEvents"]
    assert {f"model.layers.{i}" for i in range(4)} <= {e.get("name") for e in events}
    assert any(e.get("cat") == "kernel" and e["name"].startswith("triton_") for e in events), (
        "the device's kernels are in the trace"
    )


def test_memory_is_told_once_after_the_first_step(tiny: Path, tmp_path: Path) -> None:
    records = _train(tiny, tmp_path, max_steps=2)
    assert 0 < records[0]["memory"]["peak"] < records[0]["memory"]["total"]
    assert "memory" not in records[1]


def test_an_exported_osft_model_gives_the_trained_loss(
    fresh_dynamo: None, tiny: Path, tmp_path: Path
) -> None:
    """The next step's loss, from the export instead of the run itself."""
    _train(tiny, tmp_path / "a", osft=True, dtype="float32", export=True, max_steps=4)
    longer = _train(tiny, tmp_path / "b", osft=True, dtype="float32", max_steps=5)
    hf = tmp_path / "a" / "hf"
    measured = _train(
        hf,
        tmp_path / "c",
        random_init=False,
        data_path=str(tiny / "data.jsonl"),
        dtype="float32",
        max_steps=5,
        learning_rate=0.0,
    )
    assert measured[4]["loss"] == pytest.approx(longer[4]["loss"], rel=1e-3)


def test_chunks_bound_the_memory_of_the_loss() -> None:
    from cftdiag.recipe.loss import chunked_loss, cross_entropy_sum

    hidden = torch.randn(1, 8192, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 65536, (1, 8192), device="cuda")
    head = torch.nn.Linear(256, 65536, bias=False, device="cuda", dtype=torch.bfloat16)
    peaks = {}
    for chunks in (1, 8):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        chunked_loss(hidden, (labels,), head, cross_entropy_sum, chunks).backward()
        peaks[chunks] = torch.cuda.max_memory_allocated() - before
        hidden.grad = head.weight.grad = None
    assert peaks[8] < peaks[1] / 4
