"""Documents packed into one row never see each other: influence exactly 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cftdiag.recipe.packing import Row, Sample
from trainer.batch import collate
from trainer.config import TrainConfig
from trainer.distributed import process_group
from trainer.program import Program, build
from trainer.records import IGNORE, Tokens

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "gemma2": {"sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


class _Documents:
    """Two documents of 11 and 14 tokens; only the second is learned."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        first, second = (torch.randint(0, 64, (n,), generator=generator).tolist() for n in (11, 14))
        self.tokens = [_tokens(first, [IGNORE] * 11), _tokens(second, second)]
        self.samples: list[Sample] = [t.sample(i + 1) for i, t in enumerate(self.tokens)]

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[index]


def _tokens(ids: list[int], labels: list[int]) -> Tokens:
    from array import array

    return Tokens(input_ids=array("q", ids), labels=array("q", labels))


@pytest.fixture(params=[(m, a) for m in MODELS for a in ("sdpa", "eager")], ids=lambda p: "-".join(p))
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    from transformers import AutoConfig

    model_type, attn = request.param
    if model_type == "gemma2" and attn == "sdpa":
        pytest.skip("gemma2 does not take sdpa")
    shape: dict[str, Any] = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if model_type == "gpt2" else {}
    values = {
        **({} if model_type == "gpt2" else shape),
        **MODELS[model_type],
        **dropout,
        "vocab_size": 64,
        "pad_token_id": 0,
    }
    AutoConfig.for_model(model_type, **values).save_pretrained(tmp_path)
    # The grouped matmul of the experts has no float64.
    dtype = "float32" if model_type == "mixtral" else "float64"
    config = TrainConfig(
        model_name_or_path=str(tmp_path),
        random_init=True,
        attn=attn,
        train_dtype=dtype,
        device="cpu",
        loss_chunks=4,
    )
    with process_group("cpu"):
        yield build(config)


def _loss(program: Program, batch: dict[str, Any]) -> float:
    with torch.no_grad():
        return program.model(**batch).item()


def test_the_first_document_has_no_influence_on_the_second(program: Program) -> None:
    if program.dtype == torch.float32:
        pytest.skip(
            "experts see all documents' tokens in one matmul, whose rounding depends on how many there are"
        )
    documents = _Documents()
    row = Row(samples=(0, 1), length=32)
    batch = collate(row, documents, pad_id=0, varlen=False)
    assert batch["position_ids"][0].tolist() == [*range(11), *range(14), *range(7)]
    loss = _loss(program, batch)
    for position in range(11):
        changed = {**batch, "input_ids": batch["input_ids"].clone()}
        changed["input_ids"][0, position] = (changed["input_ids"][0, position] + 1) % 64
        assert _loss(program, changed) == loss, position
    changed["input_ids"][0, 11] = (changed["input_ids"][0, 11] + 1) % 64
    assert _loss(program, changed) != loss, "the second document's own tokens must matter"
    leaking = {**batch, "position_ids": torch.arange(32)[None], "input_ids": batch["input_ids"].clone()}
    unchanged = _loss(program, leaking)
    leaking["input_ids"][0, 3] = (leaking["input_ids"][0, 3] + 1) % 64
    assert _loss(program, leaking) != unchanged, (
        "without restarting positions there is influence: the test can see one"
    )


def test_a_packed_row_costs_what_its_documents_cost_alone(program: Program) -> None:
    documents = _Documents()
    documents.tokens[0] = _tokens(list(documents.tokens[0].input_ids), list(documents.tokens[0].input_ids))
    packed = _loss(program, collate(Row(samples=(0, 1), length=32), documents, pad_id=0, varlen=False))
    alone = sum(
        _loss(program, collate(Row(samples=(i,), length=16), documents, pad_id=0, varlen=False))
        for i in (0, 1)
    )
    assert packed == pytest.approx(alone, rel=1e-12 if program.dtype == torch.float64 else 1e-5)


def test_boundaries_for_flash_kernels() -> None:
    batch = collate(Row(samples=(0, 1), length=32), _Documents(), pad_id=0, varlen=True)
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 11, 25, 32]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 14


def test_labels_are_shifted_and_borders_masked() -> None:
    documents = _Documents()
    batch = collate(Row(samples=(1, 1), length=32), documents, pad_id=0, varlen=False)
    second = list(documents.tokens[1].input_ids)
    assert batch["labels"][0].tolist() == [*second[1:], IGNORE, *second[1:], IGNORE, *[IGNORE] * 4]
