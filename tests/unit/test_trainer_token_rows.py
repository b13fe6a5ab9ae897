"""Tokenized data on disk is what tokenizing gives, is made once, and is found by content alone."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from trainer import demo, tokens
from trainer.records import Records

LONG = {"text": "abcdefghij" * 9}


def write(path: Path, *more: str) -> Path:
    demo.write_data(path, count=12)
    path.write_text(path.read_text() + "".join(line + "\n" for line in (json.dumps(LONG), *more)))
    return path


def read(path: Path, **options: Any) -> Records:
    base = {"vocabulary": 272, "capacity": 512, "bad_records": "skip"}
    return Records(path, demo.tokenizer(), **{**base, **options})


def contents(records: Records) -> list[Any]:
    return [(records[i], records.samples[i]) for i in range(len(records))]


def never(*_: Any) -> Any:
    raise AssertionError("tokenized again")


def test_what_is_kept_is_what_tokenizing_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path / "d.jsonl", "{", '{"text": 3}'), tmp_path / "tokens"
    plain_told: list[str] = []
    plain = read(path, report=plain_told.append)
    first = read(path, cache=cache, write_cache=True)
    monkeypatch.setattr(tokens, "_make", never)
    for streaming in (False, True):
        told: list[str] = []
        again = read(path, cache=cache, streaming=streaming, report=told.append)
        assert contents(again) == contents(first) == contents(plain)
        assert again.digest == first.digest == plain.digest
        assert told == plain_told and len(told) == 2
    with pytest.raises(ValueError, match=r"d\.jsonl:14: not JSON"):
        read(path, cache=cache, bad_records="fatal")
    assert [
        s.length for s in read(path, cache=cache, over_long="split", capacity=64).samples if s.line == 13
    ] == [64, 27]
    assert sorted(p.name for p in next(cache.iterdir()).iterdir() if p.suffix in (".bin", "") and p.is_file()) == [
        "done", "ids.bin", "index.bin", "labels.bin",
    ]  # fmt: skip


def test_it_is_found_by_content_tokenizer_and_what_is_learned(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "d.jsonl"), tmp_path / "tokens"

    def kept() -> int:
        return len(list(cache.glob("*/done")))

    read(path, cache=cache, write_cache=True)
    shutil.copy(path, tmp_path / "copy.jsonl")
    read(tmp_path / "copy.jsonl", cache=cache, write_cache=True)
    assert kept() == 1, "of another name, but the same content"
    path.write_text(path.read_text().replace("abcdefghij", "abcdefghik"))
    read(path, cache=cache, write_cache=True)
    assert kept() == 2
    tokenizer = demo.tokenizer()
    tokenizer.chat_template += " "
    Records(path, tokenizer, vocabulary=272, capacity=512, cache=cache, write_cache=True)
    assert kept() == 3
    read(path, cache=cache, write_cache=True, train_on="all")
    assert kept() == 4


def test_a_check_reads_it_and_writes_none(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "d.jsonl"), tmp_path / "tokens"
    read(path, cache=cache)
    assert not cache.exists()


def test_one_of_many_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path / "d.jsonl"), tmp_path / "tokens"
    made: list[Path] = []
    real = tokens._make

    def count(*args: Any) -> None:
        made.append(args[0])
        real(*args)

    monkeypatch.setattr(tokens, "_make", count)
    found: list[Records] = []
    threads = [
        threading.Thread(target=lambda: found.append(read(path, cache=cache, write_cache=True)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len({records.digest for records in found}) == 1 and len(found) == 4


def test_a_half_made_one_is_made_again(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "d.jsonl"), tmp_path / "tokens"
    first = read(path, cache=cache, write_cache=True)
    kept = next(cache.iterdir())
    (kept / "done").unlink()
    (kept / "ids.bin").write_bytes(b"")
    assert contents(read(path, cache=cache, write_cache=True)) == contents(first)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["ids.bin", "labels.bin", "index.bin", "bad.json", "done"])
def test_a_damaged_one_is_made_again_and_never_trained_on(tmp_path: Path, name: str, streaming: bool) -> None:
    path, cache = write(tmp_path / "d.jsonl", "{"), tmp_path / "tokens"
    plain = contents(read(path))
    read(path, cache=cache, write_cache=True)
    [file] = cache.glob(f"*/{name}")
    whole = file.read_bytes()
    for harm in (whole[:-3], bytes([whole[0] ^ 1]) + whole[1:], b"", None):
        file.unlink() if harm is None else file.write_bytes(harm)
        told: list[str] = []
        assert contents(read(path, cache=cache, streaming=streaming)) == plain, (
            "a check reads the data itself"
        )
        again = read(path, cache=cache, write_cache=True, streaming=streaming, report=told.append)
        assert contents(again) == plain and file.read_bytes() == whole
        damaged = [text for text in told if "tokenized again" in text]
        assert len(damaged) == (0 if (name, harm) == ("done", None) else 1), told


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "d.jsonl"), tmp_path / "tokens"
    cache.write_text("a file")
    told: list[str] = []
    assert len(read(path, cache=cache, write_cache=True, report=told.append)) == 13
    assert len(told) == 1 and told[0].startswith(f"no cache of the tokenized data in {cache}: ")
    with pytest.raises(ValueError, match=r"cannot read .*none"):
        read(tmp_path / "none", cache=cache, write_cache=True)
