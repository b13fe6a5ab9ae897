"""Checkpoints without weights: the shapes of what would be saved, the bytes of what is known."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cftdiag.fastforward import SKIPPED, mark
from cftdiag.rehearse.serialized import _stage_here, hollow, sparse

NAMES = {dtype: name for name, dtype in safetensors.torch._TYPES.items()}


def test_uncomputed_tensors_take_no_room_and_keep_their_shapes() -> None:
    weight = mark(torch.empty(512, 512), SKIPPED)
    state = {"model": {"weight": weight, "steps": torch.arange(3)}, "lr": 0.1}
    stream = io.BytesIO()
    torch.save(hollow(state), stream)
    assert stream.tell() < 1 << 14
    stream.seek(0)
    again = torch.load(stream)
    assert again["model"]["weight"].shape == (512, 512)
    assert again["model"]["weight"].dtype == torch.float32
    assert again["model"]["steps"].tolist() == [0, 1, 2] and again["lr"] == 0.1


def test_safetensors_file_has_holes_for_what_is_not_computed(tmp_path: Path) -> None:
    whole = torch.arange(64, dtype=torch.int64)
    tensors = {
        "weight": mark(torch.empty(1024, 1024, dtype=torch.bfloat16), SKIPPED),
        "part": whole[8:16],
        "column": torch.arange(6.0).view(2, 3).t(),
        "none": torch.empty(0),
    }
    path = tmp_path / "model.safetensors"
    sparse(tensors, str(path), {"format": "pt"}, NAMES)
    assert path.stat().st_size > 1 << 21
    assert path.stat().st_blocks * 512 < 1 << 17
    again = safetensors.torch.load_file(path)
    assert {name: (t.shape, t.dtype) for name, t in again.items()} == {
        name: (t.shape, t.dtype) for name, t in tensors.items()
    }
    assert again["part"].tolist() == list(range(8, 16))
    assert again["column"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_nothing_is_pinned_for_a_device_that_only_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint import staging

    monkeypatch.setattr(staging.DefaultStager, "__init__", staging.DefaultStager.__init__)
    on_device = staging.StagingOptions(
        use_pinned_memory=True, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=True
    )
    with pytest.raises(AssertionError):
        staging.DefaultStager(on_device)
    _stage_here(staging)
    staged = staging.DefaultStager(on_device).stage({"weight": torch.ones(2)})
    assert staged["weight"].tolist() == [1.0, 1.0]
