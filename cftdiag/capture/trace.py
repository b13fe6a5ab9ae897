"""Structured-trace records: the one input of the recorder, whether it comes from the live logger or from a
TORCH_TRACE file.

torch writes a file as lines ``V1130 12:44:33.932000 6262 torch/_dynamo/x.py:12] {"artifact": {...},
"frame_id": 0, ...}`` followed by the payload, each line of it behind a tab. This module knows that form and
nothing of torch itself.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cftdiag.capture.assemble import Assembler
from cftdiag.capture.record import INTERNED, Record, named
from cftdiag.events import Event

__all__ = ["Record", "parse_records", "read_records", "read_trace_dir", "records"]

_PREFIX = re.compile(r"^[VIWEC](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) \d+ [^\]]*\] (\{.*)$")
_RANK = re.compile(r"rank_(\d+)_")


def records(lines: Iterable[str], year: int) -> Iterator[Record]:
    """Records of the lines of one file.

    ``year`` completes the prefix, which has none. Lines that are no record and belong to none (a torn write,
    another writer in the same file) are skipped. Interned file names (``str`` records) are resolved.
    """
    names: dict[int, str] = {}
    head: tuple[float, dict[str, Any]] | None = None
    payload: list[str] = []
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith("\t"):
            payload.append(line[1:])
            continue
        if head is not None:
            yield _record(*head, payload, names)
        head, payload = _head(line, year), []
        if head is not None and "str" in head[1]:
            _intern(head[1]["str"], names)
            head = None
    if head is not None:
        yield _record(*head, payload, names)


def parse_records(found: Iterable[Record], *, rank: int = 0) -> list[Event]:
    """Events of recorded records, in order. Pure: no torch, no clock, no file."""
    assembler = Assembler(rank=rank)
    events: list[Event] = []
    for record in found:
        events += assembler.feed(record)
    return events + assembler.close()


def read_records(path: str | Path) -> list[Record]:
    """Records of one TORCH_TRACE file; ``ValueError`` when it holds none."""
    path = Path(path)
    year = datetime.datetime.fromtimestamp(path.stat().st_mtime).year
    with open(path, encoding="utf-8", errors="replace") as file:
        found = list(records(file, year))
    if not found:
        raise ValueError(
            f"{path}: no structured-trace record; give a file or directory that TORCH_TRACE=DIR wrote"
        )
    return found


def read_trace_dir(path: str | Path) -> list[Event]:
    """Events of all files of a TORCH_TRACE directory, ordered by time.

    The rank is that of the records (torch writes it once a process group exists), else of the file's name,
    else 0.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.glob("*.log"))
    if not files:
        raise ValueError(f"{path}: no .log file; give a directory that TORCH_TRACE=DIR wrote")
    events: list[Event] = []
    for file in files:
        found = read_records(file)
        named = _RANK.search(file.name)
        rank = next((r.rank for r in found if r.rank is not None), int(named.group(1)) if named else 0)
        events += parse_records(found, rank=rank)
    return sorted(events, key=lambda event: event.time)


def _head(line: str, year: int) -> tuple[float, dict[str, Any]] | None:
    match = _PREFIX.match(line)
    if match is None:
        return None
    month, day, hour, minute, second, micro = (int(g) for g in match.groups()[:6])
    try:
        time = datetime.datetime(year, month, day, hour, minute, second, micro).timestamp()
        metadata = json.loads(match.group(7))
    except ValueError:
        return None
    return time, metadata


def _intern(entry: Any, names: dict[int, str]) -> None:
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int):
        names[entry[1]] = str(entry[0])


def _record(time: float, metadata: dict[str, Any], payload: list[str], names: Mapping[int, str]) -> Record:
    record = Record.of(metadata, "\n".join(payload) if payload else None, time)
    if record.name in INTERNED:
        return dataclasses.replace(record, data=named(record.data, names))
    return record
