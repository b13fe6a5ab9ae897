"""Training records: what is wrong is said with its line; what is right is tokenized once and the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.config import TrainConfig
from trainer.data import open_data
from trainer.records import IGNORE, Records

GOOD = {"input_ids": [1, 2, 3, 4], "labels": [IGNORE, IGNORE, 3, 4]}


def _write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def _read(path: Path, tokenizer: Any = None, **options: Any) -> Records:
    return Records(path, tokenizer, **{"vocabulary": 100, "capacity": 16, **options})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ([1], "a record is a JSON object, not list"),
        ({"text": "x"}, "neither `messages` nor `input_ids`; its keys are text"),
        ({"input_ids": [1, 2]}, "`input_ids` without `labels`"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 input_ids but 1 labels"),
        ({"input_ids": "12", "labels": [1]}, "`input_ids` must be a list of integers"),
        ({"input_ids": [1.0], "labels": [1]}, "`input_ids` must be a list of integers"),
        ({"input_ids": [], "labels": []}, "empty `input_ids`"),
        (
            {"input_ids": [1, 100], "labels": [1, 2]},
            "`input_ids` holds 100, outside the model's vocabulary of 100",
        ),
        ({"input_ids": [1, 2], "labels": [1, -7]}, "`labels` holds -7, outside the model's vocabulary"),
        ({"messages": [{"role": "user", "content": "x"}]}, "needs a tokenizer"),
    ],
)
def test_a_bad_record_is_named_by_its_line(tmp_path: Path, bad: Any, message: str) -> None:
    path = _write(tmp_path / "d.jsonl", GOOD, "", bad, GOOD)
    with pytest.raises(ValueError, match=f"d.jsonl:3: .*{message}"):
        _read(path)
    told: list[str] = []
    records = _read(path, bad_records="skip", report=told.append)
    assert [s.line for s in records.samples] == [1, 4]
    assert len(told) == 1 and ":3: skipped" in told[0]


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none.jsonl: No such file"):
        _read(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="holds no usable record"):
        _read(_write(tmp_path / "empty.jsonl"))


def test_over_long_samples_follow_the_policy(tmp_path: Path) -> None:
    long = {"input_ids": list(range(20)), "labels": list(range(20))}
    path = _write(tmp_path / "d.jsonl", GOOD, long)
    with pytest.raises(ValueError, match=r"d\.jsonl:2: 20 tokens, a row holds 16"):
        _read(path)
    told: list[str] = []
    assert len(_read(path, over_long="drop", report=told.append)) == 1
    assert "dropped" in told[0]
    cut = _read(path, over_long="truncate", report=told.append)
    assert len(cut[1].input_ids) == cut.samples[1].length == 16 and "cut" in told[1]


def test_loss_tokens_leave_out_the_first_label(tmp_path: Path) -> None:
    records = _read(_write(tmp_path / "d.jsonl", {"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, GOOD))
    assert [s.loss_tokens for s in records.samples] == [2, 2]


def test_streaming_reads_the_same(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "d.jsonl", GOOD, "", {"input_ids": list(range(20)), "labels": list(range(20))}, GOOD
    )
    memory, stream = (_read(path, over_long="truncate", streaming=s) for s in (False, True))
    assert memory.samples == stream.samples
    assert [memory[i] for i in range(3)] == [stream[i] for i in range(3)]


class _Chat:
    """A tokenizer of one token a character, with or without generation marks."""

    def __init__(self, template: str, rewrite: bool = False) -> None:
        self.chat_template = template
        self._rewrite = rewrite

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = False, **_: Any
    ) -> dict[str, Any]:
        text = "".join(f"<{m['role'][0]}>{m['content']};" for m in messages) + (
            "<a>" if add_generation_prompt else ""
        )
        if self._rewrite:
            text = f"{len(messages)}" + text
        return {"input_ids": [ord(c) for c in text]}


_TALK = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "?"},
    ]
}


def test_only_the_assistant_is_learned_without_generation_marks(tmp_path: Path) -> None:
    tokens = _read(_write(tmp_path / "d.jsonl", _TALK), _Chat("x"), vocabulary=200, capacity=64)[0]
    assert "".join(chr(v) for v in tokens.labels if v != IGNORE) == "yo;"
    assert [i for i, v in zip(tokens.input_ids, tokens.labels, strict=True) if v != IGNORE] == [
        v for v in tokens.labels if v != IGNORE
    ]


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        _read(_write(tmp_path / "d.jsonl", _TALK), _Chat("x", rewrite=True), vocabulary=200)


def test_malformed_messages(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="message 0 must be an object with a text `role`"):
        _read(_write(tmp_path / "d.jsonl", {"messages": [{"role": "user", "content": 3}]}), _Chat("x"))
    with pytest.raises(ValueError, match="has no chat template"):
        _read(_write(tmp_path / "d.jsonl", _TALK), _Chat(""))


def test_the_demo_learns_what_the_assistant_says(tmp_path: Path) -> None:
    from trainer import demo

    directory = demo.write(tmp_path)
    tokenizer = demo.tokenizer()
    records = _read(directory / "train.jsonl", tokenizer, vocabulary=272, capacity=512)
    first = json.loads((directory / "train.jsonl").read_text().split("\n")[0])["messages"]
    learned = tokenizer.decode([v for v in records[0].labels if v != IGNORE])
    assert learned == "".join(m["content"] + "<|end|>" for m in first if m["role"] == "assistant")


def test_a_validation_set_with_every_label_masked_is_refused(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "held")}
    files["train"].write_text('{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}\n')
    files["held"].write_text('{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}\n')
    config = TrainConfig(
        model_name_or_path="m", data_path=str(files["train"]), validation_path=str(files["held"])
    )
    with pytest.raises(ValueError, match="no sample of the validation set has a token to predict"):
        open_data(config, None, vocabulary=9, world=1)
