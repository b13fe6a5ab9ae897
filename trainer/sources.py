"""Where rows come from: a JSONL file, or a directory that `datasets` saved. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trainer.rows import Reader, Tokens

_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")
"""Files by which a directory is one of the `datasets` library."""


class Rows(Protocol):
    """A source of rows, each with a number for people and a place to find it again."""

    def __iter__(self) -> Iterator[tuple[int, int, Any]]: ...

    def __getitem__(self, place: int) -> Any: ...

    def tokens(self, reader: Reader, row: Any) -> Tokens: ...

    def record(self, row: Any) -> dict[str, Any]: ...


def open_rows(path: Path) -> Rows:
    """Raises ``ValueError`` for what is neither; a file that is missing, once it is read."""
    if not path.is_dir():
        return _Lines(path)
    if not any((path / name).exists() for name in _MARKS):
        raise ValueError(
            f"{path} is a directory, and none that `datasets` saved; give a JSONL file or what save_to_disk() wrote"
        )
    return _Saved(path)


class _Lines:
    """A JSONL file; the place of a row is its byte offset."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        with self._file() as file:
            offset = 0
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield number, offset, raw
                offset += len(raw)

    def __getitem__(self, place: int) -> bytes:
        with self._file() as file:
            file.seek(place)
            return file.readline()

    def tokens(self, reader: Reader, row: bytes) -> Tokens:
        return reader.line(row)

    def record(self, row: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(row)
        return found

    def _file(self) -> Any:
        try:
            return open(self._path, "rb")
        except OSError as error:
            raise ValueError(f"cannot read {self._path}: {error.strerror or error}") from error


class _Saved:
    """What `datasets` wrote by ``save_to_disk()``; a row's place is its index."""

    def __init__(self, path: Path) -> None:
        try:
            from datasets import Dataset, load_from_disk
        except ImportError as error:
            raise ValueError(
                f"{path} was saved by `datasets`, which is not installed; pip install datasets, or give a JSONL file"
            ) from error
        try:
            loaded = load_from_disk(str(path))
        except Exception as error:
            raise ValueError(f"cannot read {path}: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, Dataset):
            parts = ", ".join(str(path / name) for name in loaded)
            raise ValueError(f"{path} holds several sets; give one of them: {parts}")
        self._rows = loaded

    def __iter__(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for index, row in enumerate(self._rows):
            yield index + 1, index, row

    def __getitem__(self, place: int) -> dict[str, Any]:
        return dict(self._rows[place])

    def tokens(self, reader: Reader, row: dict[str, Any]) -> Tokens:
        # Arrow gives every row every column: what a row has not is None in it.
        return reader.row(self.record(row))

    def record(self, row: dict[str, Any]) -> dict[str, Any]:
        return {key: _without_none(value) for key, value in row.items() if value is not None}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value
