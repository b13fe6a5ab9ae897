"""Tokenized data on disk: made once by several processes, found again by its content.

A directory named by a checksum of the data, the tokenizer and this code holds ``ids.bin`` and ``labels.bin``
(32-bit integers, all rows one after another), ``index.bin`` (64-bit: of each row its number, its end and where in
it a second document begins) and
``bad.json`` (what is wrong with the rows that are none). ``done`` is there once all of it is, with the checksum of
each of these files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.lock import InUse, Lock
from trainer.rows import Reader, Tokens
from trainer.sources import Rows, open_rows

MANY = 20_000
"""Rows from which on several processes share the work; a process takes seconds to start."""
WORKERS = 16
_SPEC, _DONE = "spec.json", "done"
_FILES = ("ids.bin", "labels.bin", "index.bin", "bad.json")


class Stored:
    """Rows that are tokenized already, as a source of rows."""

    def __init__(self, directory: Path) -> None:
        index = array("q")
        index.frombytes((directory / "index.bin").read_bytes())
        self._lines, self._ends, self._second = index[0::3], index[1::3], index[2::3]
        self._ids, self._labels = _mapped(directory / "ids.bin"), _mapped(directory / "labels.bin")
        self._bad = {
            int(line): text for line, text in json.loads((directory / "bad.json").read_text()).items()
        }

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        for place, line in enumerate(self._lines):
            yield line, place, place

    def __getitem__(self, place: int) -> int:
        return place

    def tokens(self, _reader: Reader, place: int) -> Tokens:
        """As :meth:`trainer.rows.Reader.row`, which made them."""
        if (text := self._bad.get(self._lines[place])) is not None:
            raise ValueError(text)
        first, last = self._ends[place - 1] if place else 0, self._ends[place]
        return Tokens(
            input_ids=array("q", self._ids[first:last]),
            labels=array("q", self._labels[first:last]),
            second=self._second[place],
        )

    def record(self, row: int) -> dict[str, Any]:
        """Not kept: tokens are all that there is."""
        raise NotImplementedError


def stored(
    path: Path, reader: Reader, cache: Path, *, write: bool, say: Callable[[str], None] = lambda _: None
) -> Rows:
    """The rows of ``path``, tokenized if they are in ``cache`` or may be written there, else as they are.

    Of several processes that want them at once one makes them and the others wait. Raises ``ValueError`` for
    data that cannot be read; a cache that cannot be written is told and left, one that is damaged is made again.
    """
    rows = open_rows(path)
    try:
        name = key(path, reader)
    except OSError:
        return rows  # which say themselves that they cannot be read
    if name is None:
        return rows
    directory = cache / name
    while (problem := _problem(directory)) is not None:
        if not write:
            return rows
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with Lock(directory):
                if (problem := _problem(directory)) is not None:
                    if problem:
                        say(f"{problem} in {directory}: tokenized again")
                        (directory / _DONE).unlink()
                    _make(path, rows, reader, directory, say)
        except InUse:
            time.sleep(0.2)
        except OSError as error:
            say(f"no cache of the tokenized data in {cache}: {error.strerror or error}")
            shutil.rmtree(directory, ignore_errors=True)
            return rows
    return Stored(directory)


def _problem(directory: Path) -> str | None:
    """What is wrong with what is there; empty when it was never finished, None when it is what was written."""
    try:
        sums = json.loads((directory / _DONE).read_text())
        for name in _FILES:
            if _sum(directory / name) != sums[name]:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return "" if str(error.filename).endswith(_DONE) else f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{_DONE} cannot be used ({type(error).__name__})"
    return None


def key(path: Path, reader: Reader) -> str | None:
    """Checksum of all that decides about the tokens; None for a tokenizer that cannot be told from another."""
    digest = hashlib.sha256()
    backend = getattr(reader.tokenizer, "backend_tokenizer", None)
    if reader.tokenizer is not None:
        if backend is None:
            return None
        tokenizer = reader.tokenizer
        facts = [type(tokenizer).__name__, tokenizer.chat_template, tokenizer.special_tokens_map]
        digest.update(backend.to_str().encode())
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    digest.update(repr((reader.vocabulary, reader.train_on, reader.objective)).encode())
    for module in ("chat", "turns", "rows", "sources", "tokens"):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}".encode())
            with open(file, "rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:24]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What the processes share; ``ends`` are the first row of each and the row after its last."""

    path: str
    vocabulary: int
    train_on: str | None
    objective: str
    ends: list[tuple[int, int]]


def _make(path: Path, rows: Rows, reader: Reader, directory: Path, say: Callable[[str], None]) -> None:
    count = sum(1 for _ in rows)
    workers = min(WORKERS, len(os.sched_getaffinity(0)), count // (MANY // 2))
    parts = [directory / "part0"]
    started = time.perf_counter()
    if workers < 2 or not (parts := _by_workers(path, reader, directory, count, workers)):
        parts = [directory / "part0"]
        _write(rows, reader, parts[0], 0, count)
    _join(parts, directory)
    if (seconds := time.perf_counter() - started) > 5:
        say(f"tokenized {count:,} rows of {path} in {seconds:.0f} s by {len(parts)} processes")


def _by_workers(path: Path, reader: Reader, directory: Path, count: int, workers: int) -> list[Path]:
    """The parts that ``workers`` processes made; empty when one of them could not."""
    borders = [count * i // workers for i in range(workers + 1)]
    part = _Part(
        path=str(path.absolute()), vocabulary=reader.vocabulary, train_on=reader.train_on,
        objective=reader.objective, ends=list(itertools.pairwise(borders)),
    )  # fmt: skip
    (directory / _SPEC).write_text(json.dumps(dataclasses.asdict(part)))
    try:
        reader.tokenizer.save_pretrained(directory / "tokenizer")
    except Exception:  # noqa: BLE001 - whatever its library raises: this process has the tokenizer
        return []
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer.tokens", str(directory), str(i)],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for i in range(workers)
    ]
    try:
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            process.kill()  # of an interrupted run; nothing for one that has ended
    return [directory / f"part{i}" for i in range(workers)] if not any(codes) else []


def _work(directory: Path, number: int) -> None:
    """One process of :func:`_by_workers`."""
    from transformers import AutoTokenizer

    values: dict[str, Any] = json.loads((directory / _SPEC).read_text())
    part = _Part(**values)
    tokenizer = AutoTokenizer.from_pretrained(directory / "tokenizer")
    reader = Reader(
        tokenizer=tokenizer, vocabulary=part.vocabulary, train_on=part.train_on, objective=part.objective
    )
    first, last = part.ends[number]
    if key(Path(part.path), reader) != directory.name:
        sys.exit(1)  # the tokenizer that was saved is not the one that was loaded
    _write(open_rows(Path(part.path)), reader, directory / f"part{number}", first, last)


def _write(rows: Rows, reader: Reader, part: Path, first: int, last: int) -> None:
    part.mkdir(exist_ok=True)
    bad: dict[int, str] = {}
    end = 0
    with (
        open(part / "ids.bin", "wb") as ids,
        open(part / "labels.bin", "wb") as labels,
        open(part / "index.bin", "wb") as index,
    ):
        for line, _, row in itertools.islice(rows, first, last):
            second = 0
            try:
                tokens = rows.tokens(reader, row)
            except ValueError as error:
                bad[line] = str(error)
            else:
                end, second = end + len(tokens.input_ids), tokens.second
                array("i", tokens.input_ids).tofile(ids)
                array("i", tokens.labels).tofile(labels)
            array("q", (line, end, second)).tofile(index)
    (part / "bad.json").write_text(json.dumps(bad))


def _join(parts: list[Path], directory: Path) -> None:
    """The parts one after another, and then ``done``."""
    end = 0
    bad: dict[str, str] = {}
    files = {name: open(directory / name, "wb") for name in ("ids.bin", "labels.bin", "index.bin")}
    try:
        for part in parts:
            for name in ("ids.bin", "labels.bin"):
                with open(part / name, "rb") as source:
                    shutil.copyfileobj(source, files[name])
            index = array("q")
            index.frombytes((part / "index.bin").read_bytes())
            for i in range(1, len(index), 3):
                index[i] += end
            end = index[-2] if index else end
            index.tofile(files["index.bin"])
            bad |= json.loads((part / "bad.json").read_text())
    finally:
        for file in files.values():
            file.close()
    (directory / "bad.json").write_text(json.dumps(bad))
    for leftover in (*parts, directory / "tokenizer"):
        shutil.rmtree(leftover, ignore_errors=True)
    sums = {name: _sum(directory / name) for name in _FILES}
    beside = directory / f"{_DONE}.new"
    beside.write_text(json.dumps(sums))
    beside.replace(directory / _DONE)


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mapped(path: Path) -> memoryview:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(array("i"))
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("i")


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]))
