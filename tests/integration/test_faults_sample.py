"""A few faults of ``make faults``, the same ones every time: torch's log, the check, the judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import run
from tests.faults.run import Bench, one

SAMPLE = (
    ("item", "llama"),
    ("counter", "electra"),
    ("schedule_global", "starcoder2"),
    ("last_batch", "gpt_neox"),
)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.mark.everything(
    "torch's truth needs a process without our code, and each fault a check with its proofs; what the judge and the "
    "programs are is held by unit/test_faults.py"
)
@pytest.mark.parametrize(("injector", "architecture"), SAMPLE)
def test_the_check_is_right_about_a_fault_that_torch_confirms(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, injector: str, architecture: str
) -> None:
    monkeypatch.setattr(run, "SECOND", 0.0)
    result = one(bench, 1, 0, tmp_path, injector=injector, architecture=architecture)
    assert result.program and not result.wrong, result
