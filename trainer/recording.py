"""What the compiler did, by step: the recorder, its events in OUT/run/, and the graphs that every block ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cftdiag.capture import Recorder, track
from cftdiag.events import Event


class Recording:
    """Opens and closes a recorder around a run and writes ``run/`` (``run.json`` and ``events/rankNNNNN.jsonl``)."""

    def __init__(self, directory: Path, *, rank: int) -> None:
        self.recorder = Recorder(rank=rank)
        self._directory = directory
        self._rank = rank
        self._seen = 0
        (directory / "events").mkdir(parents=True, exist_ok=True)
        self._path = directory / "events" / f"rank{rank:05d}.jsonl"
        self._path.write_text("")

    def watch(self, model: nn.Module, blocks: Mapping[str, nn.Module], *, compiled: bool) -> None:
        """Attribute events to the modules of the wrapped model, and runs of graphs to its blocks when these are compiled."""
        self.recorder.watch(model)
        if compiled:
            for name, block in blocks.items():
                track(block, name, self.recorder)

    def step(self) -> dict[str, Any]:
        """Flush the events since the last call; returns ``compile_seconds``, ``graphs`` (compiled in this step) and ``recompiles``."""
        events = self.recorder.events[self._seen :]
        self._seen += len(events)
        if events:
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(event.to_line() + "\n" for event in events)
        compiles = [e for e in events if e.kind == "compile"]
        return {
            "compile_seconds": round(sum(e.seconds.get("total", 0.0) for e in compiles), 3),
            "graphs": sum(e.detail.get("status", "ok") == "ok" for e in compiles),
            "recompiles": [{"block": e.block, "reason": _reason(e)} for e in events if e.kind == "recompile"],
        }

    def eager_blocks(self, blocks: Mapping[str, nn.Module]) -> list[str]:
        """Blocks that ran no compiled graph so far."""
        return [name for name in blocks if not self.recorder.graphs.get(name)]

    def describe(self, values: Mapping[str, Any]) -> None:
        """Write ``run.json``; rank 0 only."""
        if self._rank == 0:
            (self._directory / "run.json").write_text(json.dumps({"schema": "cftdiag.run/1", **values}, indent=1) + "\n")


def _reason(event: Event) -> str:
    if event.guard is None:
        return "unknown"
    values = f" (expected {event.guard.expected}, got {event.guard.actual})" if event.guard.actual is not None else ""
    return event.guard.expression + values
