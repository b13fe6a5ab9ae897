"""What several of the trainer's tests train on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import LAUNCHING, Command, Warm


@pytest.fixture(scope="package", autouse=True)
def warm_passes(warm: Warm) -> Iterator[None]:
    """The passes of every check in this process run in children of the warmed interpreter, those of fixtures, too.

    A start of the product's own costs eight seconds; ``test_check_process.py`` and the command lines that are
    run as processes of their own test it.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in LAUNCHING:
            patch.setattr(f"{module}.ForkServer", warm.lend)
        yield


@pytest.fixture
def cftdiag_command(capfd: pytest.CaptureFixture[str]) -> Command:
    """``cftdiag_command(*arguments)``: the command line in this process; its exit code and both streams."""
    from cftdiag.cli.main import run

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = run(list(arguments))
        return subprocess.CompletedProcess(["cftdiag", *arguments], code, *capfd.readouterr())

    return call


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
