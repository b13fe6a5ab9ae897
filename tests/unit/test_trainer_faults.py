"""Memory and disk that run out are one line; determinism holds while asked for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainer.deterministic import deterministic
from trainer.faults import OutOfMemory, memory_of, writing


def test_a_refused_allocation_names_what_was_going_on() -> None:
    with (
        pytest.raises(
            OutOfMemory, match=r"rank 1, step 7, .*: out of host memory \(.*\d+ bytes.*\); give less"
        ) as caught,
        memory_of(lambda: "rank 1, step 7, 2 rows of up to 512 tokens", "give less"),
    ):
        torch.empty(2**50, dtype=torch.uint8).fill_(1)
    assert "\n" not in str(caught.value)


def test_a_gpu_without_room_and_python_too() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 80 GiB of which 1 GiB is free. Of the allocated memory 9 GiB"
    with (
        pytest.raises(
            OutOfMemory, match=r"out of GPU memory \(Tried to allocate 2.00 GiB. GPU 0 .* is free\); less"
        ),
        memory_of(lambda: "x", "less"),
    ):
        raise torch.OutOfMemoryError(text)
    with pytest.raises(OutOfMemory), memory_of(lambda: "x", "less"):
        raise MemoryError


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match=r"^shape$"), memory_of(lambda: "x", "less"):
        raise RuntimeError("shape")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"cannot write /some/file: No space left on device"),
        writing(Path("/some/file")),
    ):
        Path("/dev/full").write_text("x")
    with pytest.raises(ValueError, match=r"cannot write .*model: .*"), writing(tmp_path / "model"):
        save_file({"a": torch.zeros(3)}, tmp_path / "none" / "model")


def test_a_tokenizer_that_cannot_be_written_names_the_file() -> None:
    from trainer import demo

    with (
        pytest.raises(ValueError, match=r"cannot write /some/dir: .*os error \d+"),
        writing(Path("/some/dir")),
    ):
        demo.tokenizer().backend_tokenizer.save("/dev/null/tokenizer.json")
    with pytest.raises(Exception, match="a bug"), writing(Path("/some/dir")):
        raise Exception("a bug")


def test_a_named_file_keeps_its_name() -> None:
    with pytest.raises(ValueError, match="cannot write other: No space"), writing(Path("file")):
        raise OSError(errno.ENOSPC, "No space left on device", "other")


def test_determinism_is_set_restored_and_named_where_it_fails() -> None:
    with deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
    text = "put_ does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can"
    with (
        pytest.raises(
            ValueError, match=r"--deterministic: put_ does not have a deterministic .*; train without it"
        ),
        deterministic(True),
    ):
        raise RuntimeError(text)
    assert not torch.are_deterministic_algorithms_enabled()
