"""The corpus from what its passes said: the check decides, judges and reports as it does live, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases.expect import CASES, expected, hold
from tests.recordings import corpus

RECORDED = corpus.recordings()
BY_NAME = {case.stem: case for case in CASES}


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_recorded_case(file: Path) -> None:
    hold(corpus.replay(file).to_dict(), expected(BY_NAME[file.stem]))


def test_most_cases_are_recorded_and_no_other() -> None:
    """One that is not runs live, which costs more: record it with ``python -m tests.recordings.corpus``."""
    recorded = {file.stem for file in RECORDED}
    assert recorded <= set(BY_NAME) and len(recorded) > 0.8 * len(BY_NAME)


def test_another_order_of_passes_is_refused(tmp_path: Path) -> None:
    about, first, *rest = RECORDED[0].read_text().splitlines()
    (tmp_path / "other.jsonl").write_text("\n".join([about, json.dumps({"pass": "numerics"}), *rest]))
    assert json.loads(first)["pass"] == "auto"
    with pytest.raises(AssertionError, match="record again"):
        corpus.replay(tmp_path / "other.jsonl")
