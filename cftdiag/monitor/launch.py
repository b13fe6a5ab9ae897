"""Running a command under the monitor: its environment, its signals, its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cftdiag.monitor import process_info, rundir

INJECT = Path(__file__).resolve().parent / "inject"
PACKAGE = Path(__file__).resolve().parents[2]

#: Signals that are handed to the command. Those that the kernel sends (Ctrl-C on a terminal) reach it anyway.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

#: Seconds between two looks at the run directory.
POLL_S = 0.5


def environment(directory: Path, settings: Mapping[str, Any], *, trace: bool = False) -> dict[str, str]:
    """The command's environment: this one, with the injected directory in front of PYTHONPATH."""
    env = dict(os.environ)
    # An empty part of PYTHONPATH means the working directory: keep what the user has exactly, only put ours
    # before it.
    env["PYTHONPATH"] = str(INJECT) + (os.pathsep + env["PYTHONPATH"] if "PYTHONPATH" in env else "")
    env["CFTDIAG_RUN"] = json.dumps({"run_dir": str(directory), **settings})
    env["CFTDIAG_PACKAGE"] = str(PACKAGE)
    if trace:
        env["TORCH_TRACE"] = str(directory / rundir.TRACE)
    return env


def prepare(directory: Path, command: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Make the run directory and ``run.json``; ``ValueError`` when it cannot be made or holds another run. A run
    that ended before any rank left an event is replaced.
    """
    if _holds_a_run(directory):
        raise ValueError(f"{directory} already holds a run; give another --run-dir")
    try:
        for name in (rundir.EVENTS, rundir.RANKS):
            (directory / name).mkdir(parents=True, exist_ok=True)
        head = {
            "schema": rundir.RUN_SCHEMA,
            "command": list(command),
            "cwd": os.getcwd(),
            "started": time.time(),
        }
        rundir.write_json(
            directory / rundir.RUN_FILE,
            {**head, "environment": process_info.environment(), "settings": dict(settings)},
        )
    except OSError as error:
        raise ValueError(
            f"cannot write the run directory {directory} ({error.strerror or error}); give another --run-dir"
        ) from error


def _holds_a_run(directory: Path) -> bool:
    events = directory / rundir.EVENTS
    if events.is_dir() and any(events.iterdir()):
        return True
    kept = rundir.read_json(directory / rundir.RUN_FILE)
    return "ended" not in kept if kept is not None else (directory / rundir.RUN_FILE).exists()


def discard(directory: Path) -> None:
    """Take back what :func:`prepare` made for a command that could not be started, and nothing else."""
    (directory / rundir.RUN_FILE).unlink(missing_ok=True)
    for made in (directory / rundir.EVENTS, directory / rundir.RANKS, directory):
        with contextlib.suppress(OSError):
            made.rmdir()  # an empty one alone


def run(command: Sequence[str], env: Mapping[str, str], poll: Callable[[], None]) -> int:
    """Run the command to its end, calling ``poll`` every half second; returns its exit code, negative for a
    signal as ``subprocess`` does.

    Signals sent to this process are handed on; those of the terminal's keys reach the command by themselves.
    ``OSError`` when it cannot start.
    """
    watched = {*FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = subprocess.Popen(
            command, env=dict(env), preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
        )
        while child.poll() is None:
            got = signal.sigtimedwait(watched, POLL_S)
            # A key's signal comes from the kernel and went to the whole foreground group; one with a sender
            # came to us alone.
            if got is not None and got.si_signo != signal.SIGCHLD and got.si_code <= 0:
                child.send_signal(got.si_signo)
            poll()
        poll()
        return child.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def note_end(directory: Path, returncode: int) -> None:
    """Note how the command ended in ``run.json``; a directory that has gone is left alone."""
    path = directory / rundir.RUN_FILE
    data = rundir.read_json(path)
    if data is None:
        return
    ended: dict[str, Any] = {
        "ended": time.time(),
        "exit_code": returncode if returncode >= 0 else 128 - returncode,
    }
    if returncode < 0:
        ended["signal"] = signal.Signals(-returncode).name
    try:
        rundir.write_json(path, {**data, **ended})
    except OSError as error:
        print(f"cftdiag: cannot write {path} ({error.strerror or error})", file=sys.stderr)


def exit_like(returncode: int) -> NoReturn:
    """End this process as the command ended: same exit code, or killed by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if returncode < 0:
        number = -returncode
        # One core dump is enough, and the command has made it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(returncode if returncode >= 0 else 128 - returncode)
