"""Passes in child processes: what a child said is kept whatever becomes of it, and nothing of it is left
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from cftdiag.options import CheckOptions
from cftdiag.passes.launch import LiveFork, Pass
from cftdiag.passes.messages import Done, PassTask, ProgressEvent, Refused
from cftdiag.subject import Origin

TASK = PassTask(mode="auto", origin=Origin(type="live", name="m"), options=CheckOptions())


def said(number: int = 0) -> ProgressEvent:
    return ProgressEvent(phase="step", step=number)


def messages(run, timeout=600.0):
    running = Pass(LiveFork(run), TASK, timeout)
    return running, [m for m in running if not isinstance(m, Done)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 120
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_a_pass_that_ends_is_ok():
    running, told = messages(lambda task, send: send(said(1)))
    assert running.outcome == "ok" and told == [said(1)]


def test_a_timeout_keeps_what_was_said_and_stops_the_child():
    def run(task, send):
        send(said(os.getpid()))
        time.sleep(60)

    running, told = messages(run, timeout=1.0)
    assert running.outcome == "timeout" and "1 s" in running.detail
    assert gone(told[0].step)


@pytest.mark.parametrize(
    "how, reason",
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "out of memory"),
        (lambda: (_ for _ in ()).throw(RuntimeError("the model broke")), "the model broke"),
    ],
)
def test_a_crash_keeps_what_was_said_and_names_its_reason(how, reason):
    def run(task, send):
        send(said())
        how()

    running, told = messages(run)
    assert running.outcome == "crash" and told == [said()]
    assert reason in running.detail


def test_processes_started_by_a_pass_do_not_outlive_it():
    def run(task, send):
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        send(said(worker.pid))

    running, told = messages(run)
    assert running.outcome == "ok" and gone(told[0].step)


def test_output_of_a_pass_does_not_reach_the_caller(capfd):
    running, _ = messages(lambda task, send: print("chatter of the user's model"))
    assert running.outcome == "ok"
    assert "chatter" not in "".join(capfd.readouterr())


def test_leaving_early_stops_the_child():
    def run(task, send):
        send(said(os.getpid()))
        time.sleep(60)

    stream = iter(Pass(LiveFork(run), TASK, 60.0))
    pid = next(stream).step
    stream.close()
    assert gone(pid)


def test_a_server_goes_on_after_a_pass_that_was_left_early(tmp_path):
    """A refused input ends the reading of a pass before its end; the next pass must not be given the last
    one's answers.
    """
    from cftdiag.passes.launch import ForkServer

    (tmp_path / "bad.py").write_text("def build():\n    return None\n")
    origin = Origin(type="file", name="bad.py:build", path=str(tmp_path / "bad.py"))
    task = PassTask(mode="auto", origin=origin, options=CheckOptions(model="x"))
    server = ForkServer()
    try:
        for _ in range(3):
            stream = iter(Pass(server, task, 120.0))
            while not isinstance(next(stream), Refused):
                pass
            stream.close()
    finally:
        server.close()


SERVER = """
import sys
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import ForkServer, Pass
from cftdiag.passes.messages import PassTask
from cftdiag.subject import Origin
server = ForkServer()
print("server", server._process.pid, flush=True)
origin = Origin(type="file", name="slow", path=sys.argv[1])
for message in Pass(server, PassTask(mode="auto", origin=origin, options=CheckOptions(model="x")), 120):
    print(message, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_child_is_left_behind_when_the_caller_dies(tmp_path, how):
    slow = tmp_path / "slow.py"
    marker = tmp_path / "pid"
    slow.write_text(
        textwrap.dedent(f"""
        import os, time
        def build():
            open({str(marker)!r}, "w").write(str(os.getpid()))
            time.sleep(120)
        """)
    )
    # a shell that runs the tests in the background has SIGINT ignored, and Python then leaves it so
    caller = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(slow)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert caller.stdout is not None
    server = int(caller.stdout.readline().split()[1])
    deadline = time.monotonic() + 1500
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(marker.read_text())
    assert alive(server) and alive(child)
    caller.send_signal(how)
    caller.wait(timeout=300)
    assert gone(server) and gone(child)
