"""Training records: what is wrong is said with its line; what is right is tokenized once and the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.config import TrainConfig
from trainer.data import Data, open_data
from trainer.records import IGNORE, Records

GOOD = {"input_ids": [1, 2, 3, 4], "labels": [IGNORE, IGNORE, 3, 4]}


def _write(path: Path, *lines: Any) -> Path:
    texts = (line if isinstance(line, str | bytes) else json.dumps(line) for line in lines)
    path.write_bytes(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts))
    return path


def _read(path: Path, tokenizer: Any = None, **options: Any) -> Records:
    return Records(path, tokenizer, **{"vocabulary": 100, "capacity": 16, **options})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ([1], "a record is a JSON object, not list"),
        ({"words": "x"}, "neither `messages`, .* nor `input_ids`; its keys are words"),
        ({"text": "x"}, "`text` needs a tokenizer"),
        ({"prompt": "x", "completion": "y"}, "`prompt` needs a tokenizer"),
        (b'{"text": "\xff"}', "not UTF-8: byte 0xff at 10"),
        ("[" * 100_000, "nested too deeply"),
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
    assert len(told) == 1 and ":3: skipped" in told[0] and "\n" not in told[0]
    with pytest.raises(ValueError, match=r"d\.jsonl:3: "):
        _read(path, streaming=True)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none.jsonl: No such file"):
        _read(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="holds no usable record"):
        _read(_write(tmp_path / "empty.jsonl"))


def test_data_that_are_bad_throughout_say_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"input_ids": [1.5]}\n[1]\n')
    with pytest.raises(
        ValueError, match=r"no usable record: 2 are bad, the first in line 2: `input_ids` must be"
    ):
        _read(path, None, bad_records="skip")


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


_TALK = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "?"},
    ]
}


def _learned(record: Any, tmp_path: Path, **options: Any) -> str:
    from trainer import demo

    tokenizer = demo.tokenizer()
    options = {"vocabulary": 272, "capacity": 64, **options}
    records = _read(_write(tmp_path / "d.jsonl", record), tokenizer, **options)
    assert len(records) == 1
    return str(tokenizer.decode([v for v in records[0].labels if v != IGNORE]))


@pytest.mark.parametrize(
    ("record", "train_on", "text"),
    [
        (_TALK, None, "yo<|end|>"),
        (_TALK, "all", "<|user|>hi<|end|><|assistant|>yo<|end|><|user|>?<|end|>"),
        ({"text": "salve"}, None, "salve<|end|>"),
        ({"text": "salve<|end|>"}, None, "salve<|end|>"),
        ({"prompt": "ave ", "completion": "Caesar"}, None, "Caesar<|end|>"),
        ({"prompt": "ave ", "completion": "Caesar"}, "all", "ave Caesar<|end|>"),
        (
            {"prompt": _TALK["messages"], "completion": [{"role": "assistant", "content": "ok"}]},
            None,
            "ok<|end|>",
        ),
        (
            {"prompt": _TALK["messages"], "completion": [{"role": "assistant", "content": "ok"}]},
            "assistant",
            "yo<|end|>ok<|end|>",
        ),
        ({"input_ids": [4, 5, 6]}, None, '!"#'),
    ],
)
def test_what_is_learned_of_each_kind_of_row(
    tmp_path: Path, record: Any, train_on: str | None, text: str
) -> None:
    assert _learned(record, tmp_path, train_on=train_on) == text


@pytest.mark.parametrize(
    ("record", "train_on", "message"),
    [
        ({"text": "x"}, "assistant", "`text` has no part that could be told; leave out --train-on assistant"),
        ({"input_ids": [4, 5]}, "completion", "`input_ids` without `labels` has no part"),
        ({"prompt": "a", "completion": "b"}, "assistant", "in which nobody speaks"),
        ({"prompt": "a"}, None, "`prompt` without `completion`"),
        ({"prompt": "a", "completion": 3}, None, "`completion` must be a text, not int"),
        ({"text": "\ud800"}, None, "a lone surrogate \\(U\\+D800\\) is no text"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, None, "a lone surrogate"),
        ({**_TALK, "tools": "x"}, None, "`tools` must be a list"),
        ({**_TALK, "chat_template_kwargs": 1}, None, "`chat_template_kwargs` must be an object"),
        ({"messages": [{"role": "user", "content": None}]}, None, "message 0 must be an object"),
    ],
)
def test_rows_that_cannot_be_learned_are_one_line(
    tmp_path: Path, record: Any, train_on: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"d.jsonl:1: .*{message}") as caught:
        _learned(record, tmp_path, train_on=train_on)
    assert "\n" not in str(caught.value)


def test_a_long_text_becomes_several_samples(tmp_path: Path) -> None:
    from trainer import demo

    path = _write(tmp_path / "d.jsonl", {"text": "abcdefghij" * 4}, {"text": "xy"})
    for streaming in (False, True):
        records = _read(path, demo.tokenizer(), vocabulary=272, over_long="split", streaming=streaming)
        assert [s.length for s in records.samples] == [16, 16, 9, 3]
        assert [s.line for s in records.samples] == [1, 1, 1, 2]
        text = demo.tokenizer().decode([t for i in range(3) for t in records[i].input_ids])
        assert text == "abcdefghij" * 4 + "<|end|>"


def test_changed_contents_of_equal_length_are_another_digest(tmp_path: Path) -> None:
    path = _write(tmp_path / "d.jsonl", GOOD)
    first, again = _read(path), _read(path, streaming=True)
    assert first.digest == again.digest
    _write(path, {**GOOD, "input_ids": [1, 2, 3, 5]})
    assert _read(path).digest != first.digest
    _write(path, {**GOOD, "labels": [IGNORE, IGNORE, 3, 5]})
    assert _read(path).digest != first.digest
    with pytest.raises(ValueError, match=r"d\.jsonl:1: changed while it was trained on"):
        _write(path, {"input_ids": [1], "labels": [1]})
        again[0]


def test_a_directory_of_datasets_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [_TALK, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}]
    saved = datasets.Dataset.from_list([*rows])
    saved.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(str(tmp_path / "two"))
    from trainer import demo

    file = _write(tmp_path / "d.jsonl", *rows)
    options = {"vocabulary": 272, "capacity": 64}
    lines = _read(file, demo.tokenizer(), **options)
    for streaming in (False, True):
        ours = _read(tmp_path / "one", demo.tokenizer(), streaming=streaming, **options)
        assert [ours[i] for i in range(2)] == [lines[i] for i in range(2)] and ours.digest == lines.digest
    assert len(_read(tmp_path / "two" / "test", demo.tokenizer(), **options)) == 2
    with pytest.raises(ValueError, match=r"holds several sets; give one of them: .*two/train"):
        _read(tmp_path / "two", demo.tokenizer(), **options)
    with pytest.raises(ValueError, match="is a directory, and none that `datasets` saved"):
        _read(tmp_path, demo.tokenizer(), **options)
    (tmp_path / "one" / "data-00000-of-00001.arrow").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"cannot read .*one"):
        _read(tmp_path / "one", demo.tokenizer(), **options)


def test_malformed_messages(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="message 0 must be an object with a text `role`"):
        _learned({"messages": [{"role": "user", "content": 3}]}, tmp_path)
    with pytest.raises(ValueError, match="`messages` must be a list"):
        _learned({"messages": []}, tmp_path)


def test_the_demo_learns_what_the_assistant_says(tmp_path: Path) -> None:
    from trainer import demo

    directory = demo.write(tmp_path)
    tokenizer = demo.tokenizer()
    records = _read(directory / "train.jsonl", tokenizer, vocabulary=272, capacity=512)
    first = json.loads((directory / "train.jsonl").read_text().split("\n")[0])["messages"]
    learned = tokenizer.decode([v for v in records[0].labels if v != IGNORE])
    assert learned == "".join(m["content"] + "<|end|>" for m in first if m["role"] == "assistant")


MASKED = {"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}
FIRST = {"input_ids": [1, 2, 3], "labels": [1, -100, -100]}
"""Its one label has no token before it that could predict it."""
WHOLE = {"input_ids": [1, 2, 3]}


def _file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _opened(path: Path, **options: Any) -> tuple[Data, list[str]]:
    told: list[str] = []
    config = TrainConfig(model_name_or_path="m", data_path=str(path), output_dir=str(path.parent), **options)
    return open_data(config, None, vocabulary=9, world=1, report=told.append), told


@pytest.mark.parametrize("streaming", [False, True])
def test_samples_without_a_token_to_learn_are_told_once_with_their_number(
    tmp_path: Path, streaming: bool
) -> None:
    path = _file(tmp_path / "a.jsonl", [WHOLE, MASKED, FIRST, {"input_ids": [4]}, WHOLE])
    data, told = _opened(path, batch_size=5, streaming=streaming)
    (line,) = told
    assert line.startswith(f"{path}: 3 of 5 samples have no token to learn, the first in line 2: ")
    assert (len(data.steps), data.steps[0].loss_tokens) == (1, 4)
    assert _opened(_file(path, [WHOLE] * 5))[1] == []


def test_batches_without_a_token_to_learn_are_told_with_their_number(tmp_path: Path) -> None:
    path = _file(tmp_path / "a.jsonl", [MASKED] * 3 + [WHOLE] * 2)
    data, told = _opened(path, batch_size=1, max_epochs=2)
    assert len(data.steps) == 4
    assert told[1:] == [f"{path}: 6 of 10 batches have no token to learn and are left out"]
    data, told = _opened(path, batch_size=1, max_steps=4)
    assert len(data.steps) == 4 and int(told[1].split()[1]) <= 6, "none after the last step"
    assert len(_opened(path, batch_size=5)[1]) == 1


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([MASKED] * 2, {}),
        ([FIRST, {"input_ids": [4]}], {}),
        ([{"input_ids": [1, 2, 3, 4] * 4, "labels": [-100] * 12 + [1, 2, 3, 4]}], {"over_long": "truncate"}),
    ],
)
def test_data_that_train_nothing_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    path = _file(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=rf"a\.jsonl: none of its {len(rows)} samples has a token to learn"):
        _opened(path, max_tokens_per_gpu=8, **options)


def test_what_each_kind_of_row_leaves_to_learn(tmp_path: Path) -> None:
    from trainer import demo

    user, assistant = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    nothing: dict[str, list[dict[str, Any]]] = {
        "messages": [{"messages": [user]}, {"messages": [user, assistant]}],
        "text": [{"text": ""}, {"text": "ab"}],
        "prompt": [{"prompt": "", "completion": ""}, {"prompt": "a", "completion": ""}],
    }
    for kind, rows in nothing.items():
        told: list[str] = []
        path = _file(tmp_path / f"{kind}.jsonl", rows)
        _read(path, demo.tokenizer(), vocabulary=272, report=told.append)
        assert [line.partition(": ")[2][:47] for line in told] == [
            "1 of 2 samples have no token to learn, the firs"
        ], kind
    # A prompt is learned from by what is answered.
    path = _file(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    (sample,) = _read(path, demo.tokenizer(), vocabulary=272, objective="grpo").samples
    assert (sample.length, sample.loss_tokens) == (1, 1)


def test_a_validation_set_with_every_label_masked_is_refused(tmp_path: Path) -> None:
    train, held = _file(tmp_path / "train.jsonl", [WHOLE]), _file(tmp_path / "held.jsonl", [MASKED])
    with pytest.raises(ValueError, match=r"held\.jsonl: none of its 1 samples has a token to learn"):
        _opened(train, validation_path=str(held))
    # Or the part that is split off: of two samples one is.
    path = _file(tmp_path / "both.jsonl", [WHOLE, MASKED])
    with pytest.raises(
        ValueError, match=r"no sample of the (training|validation) set has a token to predict"
    ):
        _opened(path, validation_split=0.5)
