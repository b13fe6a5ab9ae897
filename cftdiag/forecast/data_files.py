"""Token counts of a data file, one sample at a time: whatever its size, only the counts stay in memory (4
bytes each). Torch-free.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cftdiag.errors import EnvironmentUnfit, InputError

#: A sample of more tokens than this is taken for an id or a byte offset that slipped into the column of
#: lengths.
LONGEST = 10_000_000
#: Keys that hold a length, after ``input_ids``.
LENGTH_KEYS = ("len", "length")


def read_lengths(path: str | Path) -> array[int]:
    """Lengths of all samples in file order.

    ``path`` is a JSONL file whose objects have ``input_ids`` or ``len`` (or ``length``), a text file with one
    length a line, the saved check of a training command, of whose batches each row is a sample of the padded
    length, or a directory of a Hugging Face dataset (``save_to_disk``, or ``*.jsonl`` / ``*.parquet``
    files). Raises :class:`InputError` with file and line.
    """
    found = array("i")
    for length, where in _lengths(Path(path)):
        if isinstance(length, bool) or not isinstance(length, int):
            raise InputError(f"{where}: length {length!r} is not a whole number")
        if length < 1:
            raise InputError(
                f"{where}: length {length} is not a positive number of tokens; remove the sample"
            )
        if length > LONGEST:
            raise InputError(
                f"{where}: length {length} is beyond {LONGEST:,} tokens, which no sample has; is it an id or an offset?"
            )
        found.append(length)
    if not found:
        raise InputError(f"{path}: has no samples; give a file with at least one length")
    return found


class _Where:
    """Position of a sample, put into words only when something is wrong with it."""

    __slots__ = ("number", "path", "unit")

    def __init__(self, path: Path, unit: str) -> None:
        self.path, self.unit, self.number = path, unit, 0

    def __str__(self) -> str:
        return f"{self.path}: {self.unit} {self.number}"


def _lengths(path: Path) -> Iterator[tuple[Any, _Where]]:
    if path.is_dir():
        yield from _directory(path)
        return
    if not path.exists():
        raise InputError(
            f"{path}: no such file; give a JSONL file, a text file of lengths or a dataset directory"
        )
    try:
        first = _first_character(path)
        if first == "{" and path.suffix == ".json":
            yield from _rehearsed(path)
        elif first == "{":
            yield from _jsonl(path)
        elif first == "[":
            raise InputError(f"{path}: is a JSON array; write one object or one length a line")
        else:
            yield from _text(path)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start}); give JSONL, a text file of lengths or a dataset directory"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _rehearsed(path: Path) -> Iterator[tuple[Any, _Where]]:
    """Rows of the batches that a rehearsed command saw; any other file is taken for JSONL."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        batches = saved["script"]["batches"]
    except (ValueError, KeyError, TypeError):
        yield from _jsonl(path)
        return
    where = _Where(path, "step")
    for batch in batches:
        where.number = batch["step"]
        for rows, length in batch["shapes"]:
            yield from ((length, where) for _ in range(rows))


def _first_character(path: Path) -> str:
    with open(path, encoding="utf-8-sig") as file:
        for line in file:
            if line.strip():
                return line.strip()[0]
    return ""


def _text(path: Path) -> Iterator[tuple[int, _Where]]:
    where = _Where(path, "line")
    with open(path, encoding="utf-8-sig") as file:
        for where.number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield int(line), where
            except ValueError:
                raise InputError(
                    f"{where}: {_shown(line)} is not a length; write one whole number a line"
                ) from None


def _jsonl(path: Path) -> Iterator[tuple[Any, _Where]]:
    where = _Where(path, "line")
    with open(path, encoding="utf-8-sig") as file:
        for where.number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: is not JSON ({error}): {_shown(line)}") from None
            yield _of_record(record, where), where


def _of_record(record: Any, where: _Where) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where}: is a JSON {type(record).__name__}, not an object with input_ids or len")
    ids = record.get("input_ids")
    if isinstance(ids, list):
        return len(ids)
    for key in LENGTH_KEYS:
        if key in record:
            return record[key]
    if ids is not None:
        raise InputError(f"{where}: input_ids is a {type(ids).__name__}, not a list of token ids")
    hint = "; tokenize the messages first" if "messages" in record or "text" in record else ""
    raise InputError(f"{where}: has neither input_ids nor len{hint}")


def _shown(line: str) -> str:
    text = line.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


# ---- directories of Hugging Face datasets ----


def _directory(path: Path) -> Iterator[tuple[Any, _Where]]:
    if (path / "dataset_dict.json").exists():
        splits = _json(path / "dataset_dict.json").get("splits") or []
        if "train" not in splits:
            raise InputError(
                f"{path}: has the splits {', '.join(map(str, splits)) or '(none)'}; give the directory of one, such as {path}/SPLIT"
            )
        path = path / "train"
    if (path / "state.json").exists():
        state = _json(path / "state.json")
        if state.get("_indices_files"):
            raise InputError(f"{path}: keeps its order in an index; save it again with flatten_indices()")
        for entry in state.get("_data_files") or ():
            yield from _arrow(path / entry["filename"])
        return
    files = sorted(p for p in path.rglob("*") if p.suffix in (".jsonl", ".parquet"))
    if not files:
        raise InputError(
            f"{path}: is a directory without state.json, *.jsonl or *.parquet; give a data file or a saved dataset"
        )
    for file in files:
        yield from _parquet(file) if file.suffix == ".parquet" else _lengths(file)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error
    return data if isinstance(data, dict) else {}


def _pyarrow(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentUnfit(
            "reading Arrow and Parquet files needs pyarrow; pip install pyarrow, or write the lengths to a text file"
        ) from error


def _arrow(path: Path) -> Iterator[tuple[Any, _Where]]:
    pa, ipc = _pyarrow("pyarrow"), _pyarrow("pyarrow.ipc")
    where = _Where(path, "row")
    try:
        with pa.memory_map(str(path)) as source, ipc.open_stream(source) as reader:
            for batch in reader:
                yield from _batch(batch, where)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: is no readable Arrow file ({error})") from error


def _parquet(path: Path) -> Iterator[tuple[Any, _Where]]:
    pa, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    where = _Where(path, "row")
    try:
        file = parquet.ParquetFile(path)
        columns = [
            name for name in ("input_ids", *LENGTH_KEYS) if name in file.schema_arrow.names
        ] or file.schema_arrow.names
        for batch in file.iter_batches(columns=columns):
            yield from _batch(batch, where)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: is no readable Parquet file ({error})") from error


def _batch(batch: Any, where: _Where) -> Iterator[tuple[Any, _Where]]:
    names = batch.schema.names
    if "input_ids" in names:
        lengths = _pyarrow("pyarrow.compute").list_value_length(batch.column("input_ids"))
    else:
        key = next((key for key in LENGTH_KEYS if key in names), None)
        if key is None:
            raise InputError(
                f"{where.path}: has the columns {', '.join(names)}, neither input_ids nor len; tokenize it first"
            )
        lengths = batch.column(key)
    for value in lengths.to_pylist():
        where.number += 1
        yield value, where
