"""A warm interpreter that runs each job in a forked child: one JSON line in, one out.

``python -m tests.zoo.server truth`` has imported nothing of ours; ``... predict`` has. Starting Python, importing
torch and compiling for the first time cost eight seconds of a processor; a fork costs a fifth of one.
"""

from __future__ import annotations

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
#: Processor seconds that one job may take, and seconds on the clock, after which it hangs.
CPU_S, CLOCK_S = 240, 1800

Job = Mapping[str, Any]


class Server:
    """The caller's side. ``side`` is ``truth`` or ``predict``."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job) -> dict[str, Any]:
        """The job's result, with ``cpu`` seconds; ``{"failed": why}`` where its child did not end well."""
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
        result = (
            json.loads(text)
            if text
            else {"failed": f"the child ended with status {status}: {tail.strip()[-400:]}"}
        )
        result["cpu"] = round(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 2)
        os.write(answers, json.dumps(result).encode() + b"\n")


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
    compiled = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True)).backward()
    if side == "truth":
        from tests.zoo.truth import work
    else:
        from tests.zoo.predict import work
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    _serve(work)


if __name__ == "__main__":
    main(sys.argv[1])
