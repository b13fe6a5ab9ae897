"""What several of the trainer's tests train on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of two blocks, 32 wide, its tokenizer, and ``data.jsonl`` of 24 samples."""
    from trainer import demo

    directory = tmp_path_factory.mktemp("model")
    demo.config(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
    ).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "data.jsonl", count=24)
    return directory
