"""Following a run directory while it is written: new events of all ranks since the last look."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.events import Event
from cftdiag.monitor import rundir
from cftdiag.monitor.run_files import Step, steps_of


@dataclasses.dataclass(slots=True)
class News:
    """What is new since the last look."""

    events: list[Event] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    heads: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    blocks: list[tuple[str, str]] = dataclasses.field(default_factory=list)


class Tail:
    """Reads each events file from where it left off. A file that shrinks or vanishes is read again from its
    start.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def read(self) -> News:
        """Everything whole lines have told since the last call."""
        news = News()
        for file in sorted((self._directory / rundir.EVENTS).glob("rank*.jsonl")):
            try:
                self._read(file, news)
            except OSError:
                self._offsets.pop(file, None)
        return news

    def states(self) -> list[dict[str, Any]]:
        """What each rank is doing now."""
        files = sorted((self._directory / rundir.RANKS).glob("rank*.json"))
        return [state for file in files if (state := rundir.read_json(file)) is not None]

    def _read(self, file: Path, news: News) -> None:
        offset = self._offsets.get(file, 0)
        size = file.stat().st_size
        if size <= offset:
            self._offsets[file] = offset if size == offset else 0
            return
        with open(file, "rb") as stream:
            stream.seek(offset)
            data = stream.read()
        whole = data.rfind(b"\n") + 1
        self._offsets[file] = offset + whole
        for line in data[:whole].splitlines():
            try:
                event = Event.from_dict(json.loads(line))
            except ValueError:
                continue  # a damaged line; the report tells of it
            if event.kind != "step":
                news.events.append(event)
                continue
            if event.noted.session is not None:
                news.heads.append(event.noted.session)
            news.blocks += event.noted.blocks or ()
            news.steps += steps_of(event)
