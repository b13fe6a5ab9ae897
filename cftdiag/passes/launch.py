"""Passes run in processes of their own, so that each starts with a virgin Dynamo and a virgin model.

Two launchers give the same :class:`Pass`: :class:`ForkServer` starts one helper interpreter that imports
torch once and forks a child for every pass; :class:`LiveFork` forks the caller, for a Subject that exists
only in its memory. Messages (:mod:`cftdiag.passes.messages`) stream back through a pipe, so whatever a child
reported before it timed out, ran out of memory or crashed is kept. Torch-free in the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import math
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.passes.messages import Done, Message, Send, Task, decode, encode

Entry = Callable[[Any, Send], None]
"""What a child runs: its task, and where its messages go."""

_PR_SET_PDEATHSIG = 1
_PRELOADED = ("torch", "transformers")
_LOG_TAIL = 4000  # characters of a crashed child's output that are worth keeping
_ENV_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # a pass is single-threaded Python; worker threads would only make forking unsafe


class Launcher(Protocol):
    """Starts passes."""

    def start(self, task: Task, write_fd: int, scratch: Path) -> int:
        """Start a child that runs ``task`` and writes its messages to ``write_fd``; returns its process id."""

    def wait(self) -> int | None:
        """Wait status of the child started last (as ``os.waitpid`` gives it); None where it is unknown."""

    def close(self) -> None:
        """Stop the launcher."""


class Pass:
    """One pass in a child process, seen from the driver.

    Iterating yields the child's messages until it ends; afterwards ``outcome`` is ``ok``, ``timeout`` or
    ``crash``, ``detail`` says more, and ``output`` is the end of what a crashed child printed. ``timeout`` is
    in seconds; None waits for ever.
    """

    def __init__(self, launcher: Launcher, task: Task, timeout: float | None) -> None:
        self._launcher, self._task = launcher, task
        self._timeout = math.inf if timeout is None else timeout
        self.outcome, self.detail, self.output, self.seconds = "crash", "", "", 0.0

    def __iter__(self) -> Generator[Message, None, None]:
        started = time.monotonic()
        scratch = Path(_scratch())
        read_fd, write_fd = os.pipe()
        pid: int | None = None
        status: int | None = None
        waited = False
        try:
            try:
                pid = self._launcher.start(self._task, write_fd, scratch)
            finally:
                os.close(write_fd)
            yield from self._messages(read_fd, started + self._timeout, pid)
            if self.outcome != "timeout":
                status, waited = self._launcher.wait(), True
                self._judge(status, scratch)
        finally:
            os.close(read_fd)
            if pid is not None:
                # also after a normal end: what the child started (compile workers) must not outlive it
                _kill_group(pid)
                if (
                    not waited
                ):  # a timeout, or a reader that left early: the launcher is to be ready for the next pass
                    self._launcher.wait()
            shutil.rmtree(scratch, ignore_errors=True)
            self.seconds = time.monotonic() - started

    def _messages(self, read_fd: int, deadline: float, pid: int) -> Iterator[Message]:
        pending = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                self.outcome, self.detail = "timeout", f"stopped after {self._timeout:.0f} s"
                _kill_group(pid)
                return
            # the wait is cut into pieces only so that the deadline holds to a second
            if not select.select([read_fd], [], [], min(left, 1.0))[0]:
                continue
            chunk = os.read(read_fd, 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                message: Message = decode(json.loads(line))
                yield message
                if isinstance(message, Done):
                    # not at the end of the pipe: a process that the user's code started may hold it open
                    self.outcome = "ok"
                    return

    def _judge(self, status: int | None, scratch: Path) -> None:
        if self.outcome == "ok":
            return
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            self.detail = f"the pass was killed by {name}" + (
                " (out of memory?)" if name == "SIGKILL" else ""
            )
        else:
            self.detail = f"the pass ended early (exit code {code})"
        with contextlib.suppress(OSError):
            text = (scratch / "output.txt").read_text(encoding="utf-8", errors="replace")
            self.output = text[-_LOG_TAIL:].strip()
        reason = last_words(self.output)
        if reason:
            self.detail += ": " + reason


def _scratch() -> str:
    try:
        return tempfile.mkdtemp(prefix="cftdiag-")
    except OSError as error:
        raise EnvironmentUnfit(
            f"no temporary directory can be made ({error}); free disk space or set TMPDIR"
        ) from error


def last_words(output: str) -> str:
    """The line of a crashed process's output that says why: where a signal met it, the last exception (which
    torch lets advice follow), else the last line.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for i, line in enumerate(lines[:-1]):
        if line.endswith("(most recent call first):"):  # faulthandler: the next line is where it happened
            return lines[i + 1]
    raised = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception|Failed|Unsupported)\b", line)]
    return " ".join((raised or lines or [""])[-1].split())[:300]


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere the broken pipe ends it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def fork_child(task: Task, write_fd: int, scratch: Path, run: Entry) -> int:
    """Fork; in the child run ``run(task, send)`` with its output in ``scratch/output.txt`` and leave without
    the parent's exit handlers.
    """
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does the same: whoever is first
            os.setpgid(pid, pid)
        return pid
    code = 1
    # Garbage of the parent's is not the child's to finish: a pool's finalizer would wait for threads that are
    # not here.
    gc.freeze()
    try:
        os.setpgid(0, 0)
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it kills the group
        log = os.open(scratch / "output.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        faulthandler.enable()  # into the log: a caller's own handler would write to the caller's terminal
        os.environ.update(
            TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"), TRITON_CACHE_DIR=str(scratch / "triton")
        )
        run(task, lambda message: _send(write_fd, message))
        _send(write_fd, Done())
        code = 0
    except BrokenPipeError:
        code = 1
    except BaseException:  # noqa: BLE001 - a forked child must end here, not in its parent's stack
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _send(fd: int, message: Message) -> None:
    data = json.dumps(encode(message), default=str).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


_THREADS = Path("/proc/self/task")


class LiveFork:
    """Forks the calling process, which holds the live model. ``run`` is called in the child."""

    def __init__(self, run: Entry) -> None:
        self._run = run
        self._pid: int | None = None

    @staticmethod
    def safe() -> bool:
        """True when forking this process cannot meet a lock or a device held by somebody else."""
        torch = sys.modules.get("torch")
        cuda = torch is not None and torch.cuda.is_initialized()
        return (
            hasattr(os, "fork")
            and threading.active_count() == 1
            and not cuda
            and not autograd_threads(_THREADS)
        )

    def start(self, task: Task, write_fd: int, scratch: Path) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = fork_child(task, write_fd, scratch, self._run)
        return self._pid

    def wait(self) -> int | None:
        if self._pid is None:
            return None
        pid, self._pid = self._pid, None
        return os.waitpid(pid, 0)[1]

    def close(self) -> None:
        pass


def autograd_threads(tasks: Path) -> bool:
    """True where autograd has threads of its own, as after a compiled backward of a torch that is built for CUDA: a
    forked child then has no backward at all. ``tasks`` is ``/proc/self/task``; Python counts no native thread.
    """
    with contextlib.suppress(OSError):
        for name in tasks.glob("*/comm"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                if name.read_text().startswith("pt_autograd"):
                    return True
    return False


class ForkServer:
    """An interpreter that has imported torch and nothing else, and forks a child for every task. ``entry`` is
    ``module:function`` of what a child runs.

    Importing torch and transformers takes seconds; every pass after the first is spared that, and the caller
    never imports them.
    """

    worker = "cftdiag.passes.worker"

    def __init__(self, entry: str = "cftdiag.passes.run_pass:run_task") -> None:
        if not hasattr(os, "fork"):
            raise EnvironmentUnfit("this system cannot fork processes; run the check on Linux or macOS")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._log = tempfile.TemporaryFile()
        environment = dict(os.environ, **dict.fromkeys(_ENV_THREADS, "1"))
        package_root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (package_root, environment.get("PYTHONPATH")))
        )
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    self.worker,
                    str(theirs.fileno()),
                    entry,
                    *_PRELOADED,
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,
            )
        self._socket = ours
        self._replies = ours.makefile("rb")

    def start(self, task: Task, write_fd: int, scratch: Path) -> int:
        return self.request({"task": encode(task), "scratch": str(scratch)}, write_fd)

    def request(self, what: Mapping[str, Any], fd: int) -> int:
        """Send a request with a file descriptor; returns the child's process id."""
        request = json.dumps(what).encode()
        try:
            socket.send_fds(self._socket, [len(request).to_bytes(8, "little")], [fd])
            self._socket.sendall(request)
        except OSError as error:
            raise EnvironmentUnfit(
                f"the process that runs the passes ended ({self._last_words() or error}); run `cftdiag doctor`"
            ) from error
        return int(self._reply()["pid"])

    def wait(self) -> int | None:
        return int(self._reply()["status"])

    def _reply(self) -> dict[str, int]:
        try:
            line = self._replies.readline()
        except OSError:
            line = b""
        if not line:
            raise EnvironmentUnfit(
                f"the process that runs the passes ended ({self._last_words() or 'no reason given'}); run `cftdiag doctor`"
            )
        reply: dict[str, int] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        self._log.seek(0)
        return last_words(self._log.read().decode(errors="replace"))

    def close(self) -> None:
        # first its end: a thread may wait for its reply
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._replies.close()
        self._socket.close()
        self._log.close()


def serve(control_fd: int, run: Entry) -> None:
    """The server's loop: one request, one child, one exit status, until the caller goes away."""
    serve_requests(
        control_fd,
        lambda request, fd: fork_child(decode(request["task"]), fd, Path(request["scratch"]), run),
    )


def serve_requests(control_fd: int, fork: Callable[[dict[str, Any], int], int]) -> None:
    """The loop of :func:`serve` for requests of any kind; ``fork`` starts the child and returns its id."""
    control = socket.socket(fileno=control_fd)
    while True:
        header, fds, _, _ = socket.recv_fds(control, 8, 1)
        if not header:
            return
        header += _exactly(control, 8 - len(header))
        request = json.loads(_exactly(control, int.from_bytes(header, "little")))
        pid = fork(request, fds[0])
        os.close(fds[0])
        control.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        control.sendall(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode() + b"\n")


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = control.recv(size - len(data))
        if not chunk:
            raise InputError("the request ended early")
        data += chunk
    return data
