"""What really happens: the blocks of a program compiled with ``eager`` or ``aot_eager`` and trained, counted with torch's own
counters and log lines, in a process that has imported nothing of ours.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from transformers.modeling_layers import GradientCheckpointingLayer

from tests.zoo import program
from tests.zoo.entries import Entry
from tests.zoo.server import Job

_BREAK = re.compile(r"(?:Graph break|duplicate graph break\)) in user code at (.+?):(\d+)")
_LIMIT = re.compile(r"torch\._dynamo hit config\.(\w+)")


def work(job: Job) -> dict[str, Any]:
    """Serve ``{"entry", "do": "find"}`` or ``{"entry", "plan", "do": "run", "blocks", "use_cache", "dynamic",
    "depth", "fullgraph"}``, with ``steps`` for the first few and ``eager`` to compile nothing.
    """
    assert "cftdiag" not in sys.modules, "the truth must not be taken beside our code"
    entry = Entry(**job["entry"])
    if job["do"] == "find":
        try:
            return {"plan": vars(program.find(entry))}
        except program.NotTrainable as error:
            return {"not_trainable": str(error)}
    plan = program.Plan(**job["plan"])
    model, batches = program.build(entry, plan, job["use_cache"])
    batches = batches[: job.get("steps")]
    blocks = [] if job.get("eager") else job["blocks"]
    backend = {"trace": "eager", "joint": "aot_eager"}[job["depth"]]
    return run(model, batches, blocks, backend=backend, dynamic=job["dynamic"], fullgraph=job["fullgraph"])


class _Lines(logging.Handler):
    """Breaks and limits as torch logs them, with the block that is being called."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for file, line in _BREAK.findall(text):
            self.run.breaks.append((self.run.step, self.run.block, f"{file}:{line}"))
        if _LIMIT.search(text):
            self.run.limits.append((self.run.step, self.run.block))


class _Run:
    """What was counted so far, and where the program is."""

    def __init__(self) -> None:
        self.step = 0
        self.block: str | None = None
        self.compiles: list[tuple[int, str | None]] = []
        self.breaks: list[tuple[int, str | None, str]] = []
        self.limits: list[tuple[int, str | None]] = []
        self.calls: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.refused_at: set[str] = set()
        self.graphs = 0
        self.kinds: dict[str, tuple[str, str]] = {}
        """Block -> (class, where its compiled code starts)."""

    def count(self) -> None:
        """Book the graphs that were compiled since the last time."""
        now = counters["stats"]["unique_graphs"]
        self.compiles += [(self.step, self.block)] * (now - self.graphs)
        self.graphs = now


def run(
    model: torch.nn.Module,
    batches: Sequence[Mapping[str, Any]],
    blocks: Sequence[str],
    *,
    backend: str,
    dynamic: bool | None,
    fullgraph: bool,
) -> dict[str, Any]:
    """Train one step for each batch. With ``fullgraph`` a block that is refused runs eagerly from then on."""
    seen = _Run()
    torch._logging.set_logs(graph_breaks=True)
    for name in ("torch.__trace", "torch"):
        logging.getLogger(name).propagate = False
    lines = _Lines(seen)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch._dynamo"):
            logging.getLogger(name).addHandler(lines)
    left_out = _watch_left_out(model, blocks)
    for fqn in blocks:
        _compile(model.get_submodule(fqn), fqn, seen, backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    raised, losses = None, []
    for i, batch in enumerate(batches):
        seen.step = i + 1
        try:
            losses.append(float(program.step(model, batch)))
        except Exception as error:  # noqa: BLE001 - what the compiled step raises is the truth, too
            raised = f"step {i + 1}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            break
        finally:
            seen.count()
    return {
        "compiles": seen.compiles,
        "breaks": sorted(set(seen.breaks)),
        "limits": seen.limits,
        "calls": seen.calls,
        "refused": seen.refused,
        "refused_at": sorted(seen.refused_at),
        "kinds": seen.kinds,
        "left_out": sorted(left_out),
        "raised": raised,
        "losses": losses,
    }


def _watch_left_out(model: torch.nn.Module, blocks: Sequence[str]) -> set[str]:
    """Names, filled in while the model runs, of called layers that are in no block and hold none: what transformers
    itself takes for a layer (and could checkpoint).
    """
    called: set[str] = set()
    for name, module in model.named_modules():
        inside = any(f"{name}.".startswith(f"{fqn}.") or fqn.startswith(f"{name}.") for fqn in blocks)
        if isinstance(module, GradientCheckpointingLayer) and not inside:
            module.register_forward_pre_hook(lambda module, args, name=name: called.add(name))
    return called


def _compile(
    module: torch.nn.Module, fqn: str, seen: _Run, *, backend: str, dynamic: bool | None, fullgraph: bool
) -> None:
    code = type(module).forward.__code__
    seen.kinds[fqn] = type(module).__name__, f"{code.co_filename}:{code.co_firstlineno}"
    module.compile(backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    compiled: Any = module._compiled_call_impl

    def around(*args: Any, **kwargs: Any) -> Any:
        seen.calls[fqn] = seen.calls.get(fqn, 0) + 1
        seen.count()
        outer, seen.block = seen.block, fqn
        try:
            if fqn in seen.refused:
                return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            return compiled(*args, **kwargs)
        except Exception as error:
            if not fullgraph or not _is_refusal(error):
                raise
            seen.refused[fqn] = type(error).__name__
            for frame in getattr(error, "real_stack", None) or ():
                seen.refused_at.add(f"{frame.filename}:{frame.lineno}")
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            seen.count()
            seen.block = outer

    module._compiled_call_impl = around  # type: ignore[assignment]


def _is_refusal(error: Exception) -> bool:
    nothing = isinstance(error, RuntimeError) and "found no compiled frames" in str(error)
    return nothing or isinstance(error, torch._dynamo.exc.TorchDynamoException)
