"""Programs and passes of the tests in children of one warmed interpreter.

Starting Python, importing torch and compiling for the first time costs eight seconds of a processor; a child
forked from an interpreter that has done so costs a fifth of one. ``python -m tests.warm FD`` is that
interpreter: it serves passes of the check, as the product's own worker does, and whole programs. What is
about a start itself (what is imported, what the environment does before torch is there, torchrun, signals)
belongs into a fresh interpreter: the fixture ``run_python``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cftdiag.passes.launch import ForkServer, die_with_parent, fork_child, serve_requests
from cftdiag.passes.messages import Send, Task, decode, encode
from cftdiag.quiet import quiet_imports

ROOT = Path(__file__).resolve().parent.parent
PASS = "cftdiag.passes.run_pass:run_task"
"""What a child of the product's own launcher runs by default."""
LAUNCHING = ("cftdiag.check.driver", "cftdiag.check.viability", "cftdiag.passes.one_answer")
"""The modules that start a :class:`ForkServer` of their own: a test puts :meth:`Warm.lend` there."""
PRELOADED = (
    "torch.distributed",
    "transformers.models.auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "cftdiag.passes.run_pass",
    "cftdiag.kernels.job",
    "trainer.cli",
    "trainer.program",
)


Command = Callable[..., subprocess.CompletedProcess[str]]
"""A command line of ours: arguments in; exit code and streams out."""


class _Server(ForkServer):
    worker = "tests.warm"


class Lent:
    """The warmed interpreter as a launcher of its own, which its user may close."""

    def __init__(self, warm: Warm, entry: str) -> None:
        self._warm, self._entry = warm, entry

    def start(self, task: Task, write_fd: int, scratch: Path) -> int:
        return self._warm.start(task, write_fd, scratch, self._entry)

    def wait(self) -> int | None:
        return self._warm.wait()

    def close(self) -> None:
        pass


class Warm:
    """The warmed interpreter, started when it is first needed. A launcher of passes (``close`` is the
    session's to call), and a runner of programs.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._in_use = threading.Lock()  # one child at a time: its end is told by order

    @property
    def server(self) -> _Server:
        if self._server is None:
            self._server = _Server()
        return self._server

    def start(self, task: Task, write_fd: int, scratch: Path, entry: str = PASS) -> int:
        request = {"task": encode(task), "entry": entry, "environ": dict(os.environ), "scratch": str(scratch)}
        self._in_use.acquire()
        try:
            return self.server.request(request, write_fd)
        except BaseException:
            self._in_use.release()
            raise

    def wait(self) -> int | None:
        try:
            return self.server.wait()
        finally:
            self._in_use.release()

    def lend(self, entry: str = PASS) -> Lent:
        """In place of :class:`ForkServer`: this interpreter, for one check."""
        return Lent(self, entry)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(
        self,
        program: str | Path,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
        cpu: int = 300,
        ranks: int = 0,
        cwd: Path = ROOT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a snippet (a string, dedented) or a script (a Path) as ``__main__`` and wait for its end.

        ``env`` is laid over this environment; None removes a variable. ``cpu`` is the processor time in
        seconds that the program may use, so a loaded machine does not fail it. With ``ranks`` that many
        processes run it, as torchrun would start them on one machine. With ``check`` an exit code other than
        0 raises AssertionError with both streams.
        """
        merged = dict(os.environ)
        for key, value in (env or {}).items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        with tempfile.TemporaryDirectory(prefix="cftdiag-warm-") as folder:
            streams = [Path(folder) / name for name in ("stdout", "stderr")]
            request = {
                "program": str(program) if isinstance(program, Path) else textwrap.dedent(program),
                "is_path": isinstance(program, Path),
                "args": list(args),
                "environ": merged,
                "cpu": cpu,
                "ranks": ranks,
                "cwd": str(cwd),
            }
            code = self._run({**request, "streams": [str(path) for path in streams], "scratch": folder})
            said, told = (p.read_text(errors="replace") if p.exists() else "" for p in streams)
        if check and code != 0:
            raise AssertionError(f"exit code {code}\n--- stdout\n{said}\n--- stderr\n{told}")
        return subprocess.CompletedProcess([str(program)[:80], *args], code, said, told)

    def _run(self, request: Mapping[str, Any]) -> int:
        with open(os.devnull, "wb") as nothing:
            pid = self.server.request(request, nothing.fileno())
        try:
            return os.waitstatus_to_exitcode(self.server.wait() or 0)
        except BaseException:  # a timeout of pytest, or Ctrl-C: the next test gets another interpreter
            self.close()
            raise
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def cpu(self) -> float:
        """Processor seconds of the interpreter and of its children that have ended."""
        if self._server is None:
            return 0.0
        fields = Path(f"/proc/{self._server._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def fork(request: Mapping[str, Any], fd: int) -> int:
    """In the interpreter: start the child that a request asks for, a program or a pass of the check."""
    scratch = Path(request["scratch"])
    if "program" in request:
        return fork_child(request, fd, scratch, _run_program)
    module, _, function = request["entry"].partition(":")
    work = getattr(importlib.import_module(module), function)

    def run(task: Any, send: Send) -> None:
        own = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        os.environ.update({name: value for name, value in request["environ"].items() if name not in own})
        work(task, send)

    return fork_child(decode(request["task"]), fd, scratch, run)


def _run_program(task: Mapping[str, Any], send: Send) -> None:
    os.environ.clear()
    os.environ.update(task["environ"])
    os.chdir(task["cwd"])
    for number, name in enumerate(task["streams"], 1):
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CPU, (task["cpu"], task["cpu"] + 5))
    os._exit(_ranks(task) if task["ranks"] else _program(task))


def _program(task: Mapping[str, Any]) -> int:
    """Run the program as ``__main__`` and end as an interpreter does; returns the exit code."""
    program, args = task["program"], task["args"]
    first = str(Path(program).parent) if task["is_path"] else task["cwd"]
    own = [p for p in task["environ"].get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:0] = [first, *(p for p in own if p not in sys.path)]
    try:
        if task["is_path"]:
            sys.argv = [program, *args]
            runpy.run_path(program, run_name="__main__")
        else:
            sys.argv = ["-c", *args]
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever ends a program ends it with a traceback and code 1
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _ranks(task: Mapping[str, Any]) -> int:
    """Run the program in several processes with torchrun's variables; one that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = str(task["ranks"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    alive: set[int] = set()
    for rank in range(task["ranks"]):
        pid = os.fork()
        if not pid:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0")
            os._exit(_program(task))
        alive.add(pid)
    failed = 0
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code
            time.sleep(1)  # the others may have something to say about it
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return failed


def warm_up() -> None:
    """Import what programs of the tests import, and compile once, so that no child has to."""
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread would make forking unsafe
    quiet_imports()
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    compiled = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True)).backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # a child forked beside another thread can wait for a lock for ever
    assert threading.active_count() == 1, threading.enumerate()


def main() -> None:
    """Serve until the tests go away."""
    die_with_parent()
    warm_up()
    serve_requests(int(sys.argv[1]), fork)


if __name__ == "__main__":
    main()
