"""What torch itself says of a program: its logs, in a process that has none of our code.

``python -m tests.faults.truth`` reads one JSON request a line, runs each in a fork of itself, and answers with one
line. It imports torch and transformers once; Dynamo is virgin in every fork.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import carry_out

_RECOMPILE = "Recompiling function "
_LIMIT = "recompile_limit"


class TorchLog(logging.Handler):
    """Keeps what torch logs of graph breaks, recompiles and limits, with the step and the block then running."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.step, self.block = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        name = record.name.rpartition(".")[2].lstrip("_")
        if name == "graph_breaks" and text.startswith("Graph break"):
            kind = "graph_break"
        elif name == "recompiles" and text.startswith(_RECOMPILE):
            kind = "recompile"
        elif record.levelno >= logging.WARNING and _LIMIT in text and " hit " in text:
            kind = "limit_hit"
        elif record.levelno >= logging.WARNING and "Skipping the function" in text:
            kind = "graph_break"
        else:
            return
        self.add(kind, text)

    def add(self, kind: str, text: str) -> None:
        self.events.append({"kind": kind, "step": self.step, "block": self.block, "text": text})


def observe(path: str, *, backend: str, edit: str) -> dict[str, Any]:
    """Run a program's steps in this process; compiled in place as its user would, or eager where ``backend`` is "".

    ``edit`` is what a check prints beside a remedy (see carry_out.py), done to the program first. The answer has
    ``events`` (see :class:`TorchLog`), ``error`` (the text of what a step raised), ``losses``, ``watched`` (what the
    faults watch, after each step) and ``graphs``, the step of each graph that Dynamo gave its backend.

    A compiled block that is never called, and compiled blocks of which no graph ever comes, are records too.
    """
    import torch

    log = TorchLog()
    logging.getLogger("torch").addHandler(log)
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    for name in ("torch._dynamo", "torch._functorch", "torch._inductor"):
        logging.getLogger(name).addHandler(log)
    change = carry_out.read(edit)
    carry_out.run_lines(change.settings)
    given: dict[str, int] = {}
    if backend:
        _note_graphs(backend, lambda name: given.setdefault(name, log.step))
    sys.path.insert(0, str(Path(path).parent))
    import program

    model = program.build_model()
    carry_out.run_lines(change.model, model=model)
    batches = carry_out.batches_of(change, program.make_batches())
    if change.warm_up:
        model(**batches[0])
    calls: dict[str, int] = {}
    if backend:
        for name, block in program.blocks_of(model):
            calls[name] = 0
            block.compile(**{"backend": backend, **program.COMPILE, **change.keywords})
            call = _noted(block._compiled_call_impl, name, log, calls)
            block._compiled_call_impl = carry_out.arguments_changed(change, block, call)
    losses, error, watched = [], "", []
    for i, batch in enumerate(batches):
        log.step = i + 1
        try:
            program.before_step(model, i)
            losses.append(float(program.step(model, batch)))
            watched.append({n: repr(v) for n, v in getattr(program, "watched", lambda _: {})(model).items()})
        except Exception as raised:  # noqa: BLE001 - an error is what some faults are about
            error = f"{type(raised).__name__}: {raised}"
            log.add("error", error)
            break
    assert not any(name.partition(".")[0] == "cftdiag" for name in sys.modules), (
        "our code is in the process of the truth"
    )
    graphs = list(given.values())
    if not error:
        _note_silence(log, calls, graphs, len(batches))
    return {"events": log.events, "error": error, "losses": losses, "watched": watched, "graphs": graphs}


def _note_silence(log: TorchLog, calls: dict[str, int], graphs: list[int], steps: int) -> None:
    """What torch says nothing of: compiled blocks that no step calls, or whose calls never come to a graph."""
    never = [name for name, count in calls.items() if not count]
    called = [name for name in calls if name not in never]
    for log.step in range(1, steps + 1):
        for log.block in never:
            log.add("error", "the compiled block was never called")
        for log.block in called if not graphs else ():
            log.add("perf", "the compiled block was called and Dynamo gave its backend no graph")


def _note_graphs(name: str, note: Callable[[str], object]) -> None:
    """Call ``note`` with the compile id of each graph that Dynamo gives this backend: twice with one, where AOTAutograd
    lets Dynamo begin a compile again.
    """
    from torch._dynamo.backends import registry
    from torch._guards import CompileContext

    compile_graph = registry.lookup_backend(name)

    def noted(graph: Any, inputs: Any, **options: Any) -> Any:
        note(str(CompileContext.current_compile_id()))
        return compile_graph(graph, inputs, **options)

    registry._COMPILER_FNS[name] = noted


def _noted(call: Any, name: str, log: TorchLog, calls: dict[str, int]) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        before, log.block = log.block, name
        try:
            return call(*args, **kwargs)
        finally:
            log.block = before

    return noted


class Truth:
    """The other side: a process without our code that forks one child a request."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parent.parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.truth"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def observe(self, path: Path, *, backend: str = "eager", edit: str = "") -> dict[str, Any]:
        """See :func:`observe`; {"error": ..., "events": []} where the program itself does not come up."""
        assert self._process.stdin and self._process.stdout
        with tempfile.NamedTemporaryFile(suffix=".json") as answer:
            request = {
                "path": str(path),
                "backend": backend,
                "edit": edit,
                "answer": answer.name,
            }
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("the process that asks torch for the truth has ended")
            text = Path(answer.name).read_text()
        if not text:
            return {
                "events": [],
                "error": f"the program ended with status {line.strip()}",
                "losses": [],
                "watched": [],
                "graphs": [],
            }
        return json.loads(text)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _child(request: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (120, 125))
    try:
        answer = observe(request["path"], backend=request["backend"], edit=request["edit"])
    except BaseException as raised:  # noqa: BLE001 - told to the other side
        answer = {
            "events": [],
            "error": f"{type(raised).__name__}: {raised}",
            "losses": [],
            "watched": [],
            "graphs": [],
            "broken": True,
        }
    Path(request["answer"]).write_text(json.dumps(answer))


def main() -> None:
    """Serve until the other side closes its end."""
    import torch
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread would make forking unsafe
    from tests.faults.architectures import ARCHITECTURES

    for arch in ARCHITECTURES:
        with contextlib.suppress(ImportError):
            __import__(f"transformers.models.{arch.type}.modeling_{arch.type}")
    torch.set_num_threads(1)
    compiled = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True)).backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert threading.active_count() == 1, threading.enumerate()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.alarm(1200)  # for what hangs; what computes is ended by its processor time
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            _child(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
