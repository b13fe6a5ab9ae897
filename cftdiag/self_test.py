"""The self-test: provoke a break, a recompile and a limit hit, and see whether the recorder tells them right.

Runs in a process of its own: what it compiles must not touch the caller's Dynamo. Its blocks stand for a user's,
so this is no module of a package whose frames Dynamo is kept out of.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cftdiag.error_text import one_line
from cftdiag.events import Event
from cftdiag.torch_private import callbacks, compiled_call, dynamo, table, trace_log
from cftdiag.torch_private.names import Part

if TYPE_CHECKING:
    from cftdiag.capture.recorder import Recorder

_TIMEOUT = 180


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One behaviour that was tried; ``detail`` says what was seen."""

    name: str
    part: str
    ok: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Examined:
    """What this torch has of the private names that are used, and how it behaves."""

    names: tuple[table.Row, ...]
    checks: tuple[Check, ...]


def run_selftest(timeout: float = _TIMEOUT) -> Examined:
    """All private names looked up and all events provoked, in a child process; a child that fails or hangs is
    a failed check, never an exception.
    """
    # Not through `passes.launch`: its errors send the user to `cftdiag doctor`, which must then run without it.
    # It also forks, which not every system can, and imports transformers first, whose failure is not torch's.
    command = [sys.executable, "-c", "from cftdiag.self_test import main; main()"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _failed(f"the child process did not end: {error}")
    line = next((text for text in reversed(done.stdout.splitlines()) if text.startswith("{")), None)
    if line is None:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return _failed(f"the child process failed: {last[0][:300]}")
    told = json.loads(line)
    return Examined(
        tuple(table.Row(**row) for row in told["names"]), tuple(Check(**item) for item in told["checks"])
    )


def _failed(problem: str) -> Examined:
    return Examined((), (Check("self-test", "record", False, problem),))


def main() -> None:
    """Entry of the child: one JSON line on stdout. What torch warns of goes to stderr, which the parent keeps for an error:
    `logging.disable` would silence torch's trace as well, up to torch 2.11.
    """
    print(json.dumps(dataclasses.asdict(Examined(tuple(table.probe()), tuple(provoke())))))


def provoke() -> list[Check]:
    """Compile tiny blocks that break, recompile and hit the limit in this process, and compare the events
    with what must be there.
    """
    import torch

    torch.set_num_threads(1)
    return [_safely(name, part, test) for name, (part, test) in _TESTS.items()]


def _safely(name: str, part: Part, test: Callable[[], str | None]) -> Check:
    try:
        dynamo.reset()
        problem = test()
    except Exception as error:  # noqa: BLE001 - whatever a hook of another torch raises is the answer
        problem = one_line(error, 200)
    return Check(name, part, problem is None, problem or "as expected")


def _blocks(scale: Callable[[Any], Any], count: int = 2) -> list[Any]:
    """Tiny blocks of one class, 4 features wide."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return scale(self.lin(x)).relu()

    return [Block() for _ in range(count)]


def _run(scale: Callable[[Any], Any], *lengths: int, **kwargs: Any) -> Recorder:
    """Record two blocks, ``scale`` in each, over lengths."""
    import torch

    from cftdiag.capture.graph_counts import counting, track
    from cftdiag.capture.recorder import Recorder

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(_blocks(scale))
    with Recorder(model) as rec:
        for i, block in enumerate(model.layers):
            block.compile(backend=counting("eager", rec), **kwargs)
            track(block, f"layers.{i}", rec)
        for length in lengths:
            x = torch.ones(2, length, 4, requires_grad=True)
            for block in model.layers:
                x = block(x)
    return rec


def _only(rec: Recorder, kind: str) -> Event:
    found = [event for event in rec.events if event.kind == kind]
    if len(found) != 1:
        raise LookupError(f"{len(found)} {kind} events instead of one")
    return found[0]


def _identity(x: Any) -> Any:
    return x


def _breaking(x: Any) -> Any:
    dynamo.graph_break()
    return x


def _compile() -> str | None:
    event = _only(_run(_identity, 3), "compile")
    return None if event.block == "layers.0" else f"the compile is booked on {event.block}"


def _break() -> str | None:
    event = _only(_run(_breaking, 3), "graph_break")
    told = (event.block, event.broke.gb_id, event.stack[-1].function if event.stack else None)
    return None if told == ("layers.0", "GB0025", "_breaking") else f"told as {told}"


def _fullgraph() -> str | None:
    import torch

    from cftdiag.capture.recorder import Recorder

    with Recorder() as rec:
        try:
            torch.compile(_breaking, backend="eager", fullgraph=True)(torch.ones(3))
        except Exception as error:  # noqa: BLE001 - its class is private to torch and the point is the event
            told = _only(rec, "graph_break").broke
            return None if told.fullgraph and told.exception == type(error).__name__ else f"told as {told}"
    return "fullgraph=True did not refuse a break"


def _recompile() -> str | None:
    event = _only(_run(_identity, 3, 5), "recompile")
    guard = event.guard
    told = None if guard is None else (guard.source, guard.expected, guard.actual)
    return None if told == ("L['x'].size()[1]", "3", "5") else f"told as {told}"


def _limit() -> str | None:
    with dynamo.config.patch(recompile_limit=2):
        event = _only(_run(_identity, 3, 5, 7, dynamic=False), "limit_hit")
    told = (event.limited.limit_kind, event.limited.raised, len(event.reasons))
    return None if told == ("recompile_limit", False, 2) else f"told as {told}"


def _graphs() -> str | None:
    graphs = _run(_identity, 3).graphs
    return None if graphs == {"layers.0": {"0/0"}, "layers.1": {"0/0"}} else f"told as {graphs}"


def _probing() -> str | None:
    import torch

    from cftdiag.capture.cached_guards import probe

    def scale(x: Any) -> Any:
        return x * 2

    torch.compile(scale, backend="eager", dynamic=False)(torch.ones(3))
    hit, miss = probe(scale.__code__, {"x": torch.ones(3)}), probe(scale.__code__, {"x": torch.ones(4)})
    good = len(hit) == 1 and hit[0][1] and len(miss) == 1 and not miss[0][1] and miss[0][2] is not None
    return None if good else f"told as {hit} and {miss}"


def _clean() -> str | None:
    from cftdiag.capture.recorder import Recorder

    def state() -> tuple[Any, ...]:
        return list(logging.getLogger(trace_log.TRACE_LOGGER).handlers), callbacks.registered()

    before = state()
    with Recorder():
        pass
    return None if state() == before else "a handler or callback was left behind"


def _wrapping() -> str | None:
    import torch

    calls: list[str] = []

    def around(call: compiled_call.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append("in")
        return call(*args, **kwargs)

    in_place, wrapped = _blocks(_identity)
    in_place.compile(backend="eager")
    wrapper = torch.compile(wrapped, backend="eager")
    for module in (in_place, wrapper):
        undo = compiled_call.wrap(module, around)
        module(torch.ones(2, 4))
        undo()
        module(torch.ones(2, 4))
    return None if calls == ["in", "in"] else f"{len(calls)} calls of 2 were seen"


def _fast_forward() -> str | None:
    import torch

    from cftdiag import fastforward

    [block] = _blocks(_identity, 1)
    block.compile(backend=fastforward.backend_for("joint"), dynamic=True, fullgraph=True)
    with fastforward.SkipMode():
        shapes = []
        for length in (3, 5):
            out = block(torch.ones(2, length, 4, requires_grad=True))
            out.sum().backward()
            shapes.append(tuple(out.shape))
    trained = block.lin.weight.grad is not None
    good = shapes == [(2, 3, 4), (2, 5, 4)] and trained
    return None if good else f"shapes {shapes}, gradients {'there' if trained else 'missing'}"


#: What is tried -> the part that cannot work where it fails, and the test: it returns what went wrong.
_TESTS: dict[str, tuple[Part, Callable[[], str | None]]] = {
    "leaves torch as found": ("record", _clean),
    "records a compile": ("record", _compile),
    "records a graph break": ("record", _break),
    "records a fullgraph failure": ("record", _fullgraph),
    "records a recompile": ("record", _recompile),
    "records a limit hit": ("record", _limit),
    "counts graphs per block": ("blocks", _graphs),
    "probes cached guards": ("guards", _probing),
    "wraps compiled calls": ("blocks", _wrapping),
    "fast-forwards a block": ("joint", _fast_forward),
}
