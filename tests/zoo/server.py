"""A warm interpreter that runs each job in a forked child: one JSON line in, one out.

``python -m tests.zoo.server truth`` has imported nothing of ours; ``... predict`` has. Starting Python, importing
torch and compiling for the first time cost eight seconds of a processor; a fork costs a fifth of one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Processor seconds that one job, or a pass of a check in it, may take, and seconds on the clock, after which it hangs.
CPU_S, CLOCK_S = 25, 1800

Job = Mapping[str, Any]


class Server:
    """The caller's side. ``side`` is ``truth`` or ``predict``."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job) -> dict[str, Any]:
        """The job's result, with ``cpu`` seconds; ``{"failed": why}`` where its child did not end well, and
        ``{"too_slow": why}`` where it used up its processor time.
        """
        if self._process is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
            )
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.zoo.server", self._side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is the caller's to handle
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process = None
            return {"failed": f"the {self._side} server ended"}
        result: dict[str, Any] = json.loads(line)
        return result

    def close(self) -> None:
        """End the interpreter and whatever child it waits for."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _serve(work: Callable[[Job], dict[str, Any]]) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what a model prints is no answer
    for line in sys.stdin:
        _import(json.loads(line)["entry"]["cls"])
        with tempfile.NamedTemporaryFile() as out, tempfile.TemporaryFile() as said:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            child = os.fork()
            if child == 0:
                _child(work, json.loads(line), out.name, said.fileno())
            status = _wait(child)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            text = out.read()
            said.seek(0)
            tail = said.read()[-2000:].decode(errors="replace")
        if text:
            result = json.loads(text)
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            result = {"too_slow": f"stopped after {CPU_S} s of a processor"}
        else:
            result = {"failed": f"the child ended with status {status}: {tail.strip()[-400:]}"}
        result["cpu"] = round(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 2)
        os.write(answers, json.dumps(result).encode() + b"\n")


def _import(cls: str) -> None:
    """Import a class once for all children that need it; what fails here fails in them, too, and is told there."""
    import transformers

    with contextlib.suppress(Exception):
        getattr(transformers, cls)


def _child(work: Callable[[Job], dict[str, Any]], job: Job, out: str, said: int) -> None:
    os.setpgid(0, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    try:
        result = work(job)
    except BaseException:  # noqa: BLE001 - a child that fails says so and ends here
        result = {"failed": traceback.format_exc()[-3000:]}
    Path(out).write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _wait(child: int) -> int:
    """Wait for the child; one that outlives the clock is ended with all that it started."""
    until = time.monotonic() + CLOCK_S
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def main(side: str) -> None:
    """Warm up and serve until the input ends."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    _compile_once()
    if side == "truth":
        from tests.zoo.truth import work
    else:
        from tests.zoo.predict import work
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    gc.freeze()  # what every child inherits is not looked at again
    gc.disable()  # a child ends before it needs one
    _serve(work)


def _compile_once() -> None:
    """Compile what blocks are made of, so that no child imports the parts of torch that do it, with sizes that are
    numbers and sizes that are symbols.
    """
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(self.norm(x)).view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
            y = torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)
            y = (y @ y.transpose(2, 3)).softmax(-1) @ y
            y = torch.nn.functional.dropout(y.transpose(1, 2).reshape(x.shape), 0.1, self.training)
            return x + torch.nn.functional.gelu(y)

    for dynamic in (False, True):
        block = Block()
        block.compile(backend="aot_eager", dynamic=dynamic)
        block(torch.ones(3, 5, 8)).sum().backward()


if __name__ == "__main__":
    main(sys.argv[1])
