"""Attentions that cannot train on a device are refused at the start, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer import demo
from trainer.cli import main
from trainer.model import require_device


@pytest.mark.parametrize(
    ("attn", "message"),
    [
        (
            "flex_attention",
            "attention flex_attention has no backward on a CPU in torch; give --attn sdpa, or train on CUDA",
        ),
        ("varlen", "attention varlen has CUDA kernels only; give --attn sdpa, or train on CUDA"),
        (
            "flash_attention_2",
            "attention flash_attention_2 has CUDA kernels only; give --attn sdpa, or train on CUDA",
        ),
    ],
)
def test_on_a_cpu_the_reason_is_one_line_and_nothing_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], attn: str, message: str
) -> None:
    demo.config(num_hidden_layers=1).save_pretrained(tmp_path)
    arguments = [
        "--model-name-or-path",
        str(tmp_path),
        "--random-init",
        "--data-path",
        "none",
        "--device",
        "cpu",
        "--attn",
        attn,
    ]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--output-dir", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not list((tmp_path / "out").rglob("*")), (
        "the directory is tried first, and nothing is written into it"
    )


def test_a_flash_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.utils

    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    with pytest.raises(ValueError, match="attention flash_attention_2 needs a package that is not installed"):
        require_device("flash_attention_2", "cuda")
    for attn in ("sdpa", "eager", "flex_attention", "varlen"):
        require_device(attn, "cuda")


def test_this_torch_really_has_no_backward_of_flex_attention_on_a_cpu() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(1, 1, 8, 16, requires_grad=True) for _ in range(3))
    with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
        flex_attention(q, k, v)
