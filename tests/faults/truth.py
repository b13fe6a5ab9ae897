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
from pathlib import Path
from typing import Any

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


def observe(path: str, *, backend: str, config: dict[str, Any]) -> dict[str, Any]:
    """Run a program's steps in this process; compiled in place as its user would, or eager where ``backend`` is "".

    The answer has ``events`` (see :class:`TorchLog`), ``error`` (the text of what a step raised) and ``losses``.
    """
    import torch

    log = TorchLog()
    logging.getLogger("torch").addHandler(log)
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    for name in ("torch._dynamo", "torch._functorch", "torch._inductor"):
        logging.getLogger(name).addHandler(log)
    for key, value in config.items():
        owner, _, attribute = key.rpartition(".")
        setattr(sys.modules[owner], attribute, value)
    sys.path.insert(0, str(Path(path).parent))
    import program

    model = program.build_model()
    frames = torch._dynamo.utils.counters["frames"]
    if backend:
        for name, block in program.blocks_of(model):
            block.compile(**{"backend": backend, **program.COMPILE})
            block._compiled_call_impl = _noted(block._compiled_call_impl, name, log)
    losses, error = [], ""
    for i, batch in enumerate(program.make_batches()):
        log.step = i + 1
        try:
            program.before_step(model, i)
            losses.append(float(program.step(model, batch)))
        except Exception as raised:  # noqa: BLE001 - an error is what some faults are about
            error = f"{type(raised).__name__}: {raised}"
            log.add("error", error)
            break
    assert not any(name.partition(".")[0] == "cftdiag" for name in sys.modules), (
        "our code is in the process of the truth"
    )
    return {"events": log.events, "error": error, "losses": losses, "compiled": frames.get("ok", 0)}


def _noted(call: Any, name: str, log: TorchLog) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
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

    def observe(
        self, path: Path, *, backend: str = "eager", config: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """See :func:`observe`; {"error": ..., "events": []} where the program itself does not come up."""
        assert self._process.stdin and self._process.stdout
        with tempfile.NamedTemporaryFile(suffix=".json") as answer:
            request = {
                "path": str(path),
                "backend": backend,
                "config": config or {},
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
                "compiled": 0,
            }
        return json.loads(text)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _child(request: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (120, 125))
    try:
        answer = observe(request["path"], backend=request["backend"], config=request["config"])
    except BaseException as raised:  # noqa: BLE001 - told to the other side
        answer = {
            "events": [],
            "error": f"{type(raised).__name__}: {raised}",
            "losses": [],
            "compiled": 0,
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
            signal.alarm(300)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            _child(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
