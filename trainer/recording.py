"""What the compiler did in each step, for the metrics: compile seconds, graphs, recompiles, and which blocks
ran a graph at all.

The run directory is the monitor's; this recorder listens beside it. It must be there before the model is
wrapped, because backends are counted by it, while the monitor wants the wrapped model; and it numbers a
warm-up as step 0, where the monitor is already in step 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from cftdiag import guards
from cftdiag.cache_keys import Notes
from cftdiag.capture import Recorder, track
from cftdiag.events import Event
from cftdiag.monitor.event_cause import LiveDiagnosis

#: What is told of a recompile that a CPU has of its own.
ON_CPU = "expected once on a CPU: Inductor's C++ code adds up other numbers of values in other ways"


class Recording:
    """A recorder and how far its events were told."""

    def __init__(self, *, rank: int) -> None:
        self.recorder = Recorder(rank=rank, cache_notes=Notes())
        self._diagnosis = LiveDiagnosis()
        self._seen = 0

    def watch(self, model: nn.Module, blocks: Mapping[str, nn.Module], *, compiled: bool) -> None:
        """Attribute events to the modules of the wrapped model, and runs of graphs to its blocks when these
        are compiled.
        """
        self.recorder.watch(model)
        if compiled:
            for name, block in blocks.items():
                track(block, name, self.recorder)

    def step(self) -> dict[str, Any]:
        """Of the events since the last call: ``compile_seconds``, ``graphs`` (compiled), ``recompiles`` with block, reason,
        cause (a key of `cftdiag explain`) and what else is known of it (``note``), and, where compile caches were
        asked, ``caches``: number by cache and answer (``hit``, ``miss``, ``bypass``), and for each miss of which an
        earlier key is known ``cache_misses``: cache, compile and block, the nearest key and what of it is another.
        """
        events = self.recorder.events[self._seen :]
        self._seen += len(events)
        compiles = [e for e in events if e.kind == "compile"]
        lookups = [e for e in events if e.kind == "cache"]
        asked = Counter(f"{e.cached.cache} {e.cached.outcome}" for e in lookups)
        missed = [
            {
                "cache": e.cached.cache,
                "compile_id": e.compile_id,
                "block": e.block,
                "nearest": e.cached.nearest,
                "differs": list(e.cached.differs or ()),
            }
            for e in lookups
            if e.cached.nearest is not None
        ]
        return {
            "compile_seconds": round(sum(e.seconds.get("total", 0.0) for e in compiles), 3),
            "graphs": sum(e.compiled.status == "ok" for e in compiles),
            "recompiles": [self._recompile(e) for e in map(self._explained, events) if e.kind == "recompile"],
            **({"caches": dict(asked)} if asked else {}),
            **({"cache_misses": missed} if missed else {}),
        }

    def _explained(self, event: Event) -> Event:
        try:
            return self._diagnosis.explain(event)
        except Exception:  # noqa: BLE001 - what cannot be explained must not end the training
            return event

    def _recompile(self, event: Event) -> dict[str, Any]:
        place = guards.inductor_place(event.guard.added if event.guard is not None else None)
        note = {"note": ON_CPU} if "_inductor/codegen/cpp.py" in place else {}
        return {"block": event.block, "reason": _reason(event), "cause": event.detail.cause, **note}

    def eager_blocks(self, blocks: Mapping[str, nn.Module]) -> list[str]:
        """Blocks that ran no compiled graph so far.

        A stack of which none did, beside one of which some did, is not called by this training: the vision
        tower of a model that is trained on text.
        """
        ran = [name for name in blocks if self.recorder.graphs.get(name)]
        stacks = {name.rpartition(".")[0] for name in ran or blocks}
        return [name for name in blocks if name not in ran and name.rpartition(".")[0] in stacks]


def _reason(event: Event) -> str:
    if event.guard is None:
        return "unknown"
    values = (
        f" (expected {event.guard.expected}, got {event.guard.actual})"
        if event.guard.actual is not None
        else ""
    )
    return event.guard.expression + values
