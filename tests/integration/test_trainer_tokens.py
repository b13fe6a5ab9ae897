"""Several processes tokenize one file, to the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer import demo, tokens
from trainer.records import Records


@pytest.mark.everything(
    "three processes that import transformers; what one makes is in tests/unit/test_trainer_token_rows.py"
)
def test_several_processes_make_what_one_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.jsonl"
    demo.write_data(path, count=30)
    path.write_text("{\n\n" + path.read_text() + '{"text": 3}\n')
    options: dict[str, Any] = {"vocabulary": 272, "capacity": 512, "bad_records": "skip"}
    told: tuple[list[str], list[str]] = ([], [])
    plain = Records(path, demo.tokenizer(), report=told[0].append, **options)

    def never(*_: Any) -> Any:
        raise AssertionError("this process tokenized")

    monkeypatch.setattr(tokens, "MANY", 20)
    monkeypatch.setattr(tokens.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(tokens, "_write", never)
    ours = Records(
        path, demo.tokenizer(), cache=tmp_path / "t", write_cache=True, report=told[1].append, **options
    )
    assert [ours[i] for i in range(len(ours))] == [plain[i] for i in range(len(plain))]
    assert ours.samples == plain.samples and ours.digest == plain.digest
    # How long it took is told too where it was long.
    assert told[0] == [text for text in told[1] if "processes" not in text] and len(told[0]) == 2
