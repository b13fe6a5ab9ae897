"""Run the arms in fresh processes, step by step in turn, and keep what each step took.

Every rank of every arm stops at the end of each step (:mod:`cftdiag.monitor.gate`) until it gets the word, so
that one arm trains at a time. Taken in turn after each step, a slow minute of the machine hits all arms alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.bench.arms import Arm
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.monitor import launch
from cftdiag.monitor.gate import END, GO

#: Seconds that a process has to end by itself once its last step was told.
END_S = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """How one arm is started in one round."""

    words: Sequence[str]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokens: Callable[[], Mapping[int, int]] | None = None
    """Tokens of each step, where the program notes them itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One step of one arm, all ranks together."""

    step: int
    seconds: float | None
    """Of the slowest rank; None for the first step, which begins with the process."""
    cpu_seconds: float | None
    """Processor time of all ranks."""
    loss: float | None
    """Mean over ranks."""
    shapes: tuple[tuple[int, int], ...]
    """(rows, length) of the batches of all ranks, where they were seen."""
    tokens: int | None


@dataclasses.dataclass(kw_only=True)
class Run:
    """One arm in one round."""

    arm: str
    round: int
    """The first has empty compile caches, later ones those that the first has filled."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    samples: list[Sample] = dataclasses.field(default_factory=list)
    peak_bytes: int | None = None
    """Of the rank with the most, after the warm-up."""
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the monitor saw: ``cftdiag.run/1``."""
    failed: str | None = None
    """Why it ended before its last step, on one line."""
    code: int | None = None
    """Exit code of a process that failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run."""

    arms: Sequence[Arm]
    command: Callable[[Arm, int, Path], Command]
    """(arm, round, a directory of its own) -> how it is started."""
    steps: int
    warmup: int
    rounds: int
    together: bool
    """All arms of a round are alive at once and take turns after each step; else one run after the other."""
    timeout: float
    """Seconds that a step, or the start with the first one, may take."""
    keep: Path | None = None
    """Where the run directories stay."""


Say = Callable[[str], None]


def run(plan: Plan, say: Say = lambda text: None) -> tuple[list[Run], bool]:
    """(runs, whether Ctrl-C ended it early). What ran before Ctrl-C is kept."""
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        place = plan.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cftdiag-bench-")))
        # sockets have short paths
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cb-", dir=_short_folder())))
        try:
            for number in range(plan.rounds):
                _round(plan, number, place, sockets, runs, say)
        except KeyboardInterrupt:
            return runs, True
    return runs, False


def _short_folder() -> str | None:
    return "/tmp" if len(tempfile.gettempdir()) > 60 and os.access("/tmp", os.W_OK) else None


def _round(plan: Plan, number: int, place: Path, sockets: Path, runs: list[Run], say: Say) -> None:
    order = [plan.arms[(i + number) % len(plan.arms)] for i in range(len(plan.arms))]
    lost = {run.arm for run in runs if run.failed}
    groups = [order] if plan.together else [[arm] for arm in order]
    for group in groups:
        with contextlib.ExitStack() as stack:
            alive: list[_Process] = []
            for arm in group:
                if arm.name in lost:
                    continue
                record = Run(arm=arm.name, round=number)
                runs.append(record)
                folder = place / f"round-{number + 1}" / _file_name(arm.name)
                process = stack.enter_context(_started(plan, arm, record, folder, place, sockets))
                say(f"round {number + 1} of {plan.rounds}: {arm.name}: starting")
                if process.wait(1) and process.until(plan.warmup, say):
                    alive.append(process)
            for step in range(plan.warmup + 1, plan.steps + 1):
                # who comes first changes from step to step
                for i in range(len(alive)):
                    process = alive[(i + step) % len(alive)]
                    if not process.record.failed:
                        process.until(step, say)
            for process in alive:
                process.end()


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "+-_" else "_" for c in name)


@contextlib.contextmanager
def _started(
    plan: Plan, arm: Arm, record: Run, folder: Path, place: Path, sockets: Path
) -> Iterator[_Process]:
    process = _Process(plan, arm, record, folder, place, sockets)
    try:
        yield process
    finally:
        process.close()


class _Process:
    """One arm in one round: its processes, and the line to each of its ranks."""

    def __init__(self, plan: Plan, arm: Arm, record: Run, folder: Path, place: Path, sockets: Path) -> None:
        self.record, self._plan, self._folder = record, plan, folder
        self._command = plan.command(arm, record.round, folder)
        self._links: dict[int, _Link] = {}
        self._loose: list[_Link] = []
        self._ended = False
        self._run_dir = folder / "run"
        if self._run_dir.exists():
            raise InputError(f"{self._run_dir} already holds a run; give another --keep")
        address = str(sockets / f"{len(os.listdir(sockets))}")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(address)
        self._door.listen()
        settings = {
            "sinks": {"gate": {"address": address, "warmup": plan.warmup}},
            "warmup_steps": plan.warmup,
            "exchange": "none",
        }
        self._run_dir.mkdir(parents=True)
        launch.prepare(self._run_dir, self._command.words, {})
        env = launch.environment(self._run_dir, settings)
        caches = place / "caches" / _file_name(arm.name)
        if record.round == 0:
            shutil.rmtree(caches, ignore_errors=True)
        env |= {
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(launch.PACKAGE)]),
            **self._command.env,
        }
        self._log = folder / "output.txt"
        with open(self._log, "wb") as output:
            try:
                self._popen = subprocess.Popen(
                    list(self._command.words),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is ours: what ran is kept first
                )
            except OSError as error:
                self._door.close()
                raise InputError(
                    f"cannot start {self._command.words[0]}: {error.strerror or error}; check the command after --"
                ) from error

    # ---- steps ----

    def until(self, step: int, say: Say) -> bool:
        """Let it train up to the end of ``step``; False when it failed before."""
        while (done := len(self.record.samples)) < step:
            say(
                f"round {self.record.round + 1} of {self._plan.rounds}: {self.record.arm}: step {done + 1} of {self._plan.steps}"
            )
            for link in self._links.values():
                link.send(GO)
            if not self.wait(done + 1):
                return False
        return True

    def wait(self, step: int) -> bool:
        """Until all ranks have told of ``step``; False when it failed."""
        limit = time.monotonic() + self._plan.timeout
        while not self._complete():
            left = limit - time.monotonic()
            if left <= 0:
                return self._fail(f"step {step} took more than {self._plan.timeout:g} s (--timeout)")
            self._listen(min(left, 0.2))
            if not self._complete() and self._popen.poll() is not None:
                self._listen(0)
                if not self._complete():
                    code = self._popen.returncode
                    self.record.code = code
                    return self._fail(_last_words(self._log, code, step))
        said = [link.said.pop(0) for link in self._links.values()]
        numbers = {one["step"] for one in said}
        if numbers != {step}:
            return self._fail(f"its ranks are at different steps ({', '.join(map(str, sorted(numbers)))})")
        self.record.samples.append(_together(said))
        if step > self._plan.warmup:
            self.record.peak_bytes = max(one["peak_bytes"] for one in said)
        return True

    def _complete(self) -> bool:
        world = self.record.facts.get("world_size")
        return world is not None and len(self._links) == world and all(x.said for x in self._links.values())

    def _listen(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._door, selectors.EVENT_READ)
            for link in (*self._links.values(), *self._loose):
                if link.open:
                    selector.register(link.socket, selectors.EVENT_READ, link)
            for key, _ in selector.select(seconds):
                if key.data is None:
                    self._loose.append(_Link(self._door.accept()[0]))
                else:
                    key.data.read()
        for link in [x for x in self._loose if x.facts is not None]:
            assert link.facts is not None
            self._loose.remove(link)
            self._links[int(link.facts["rank"])] = link
            if int(link.facts["rank"]) == 0 or not self.record.facts:
                self.record.facts = link.facts

    def _fail(self, why: str) -> bool:
        self.record.failed = why
        return False

    # ---- end ----

    def end(self) -> None:
        """Let it end after its last step; :meth:`close` waits for it."""
        self._ended = not self.record.failed
        for link in self._links.values():
            link.send(END)

    def close(self) -> None:
        """Stop all of its processes, and read what the monitor wrote."""
        if self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(END_S)
        self._kill()
        for link in (*self._links.values(), *self._loose):
            link.close()
        self._door.close()
        from cftdiag.monitor import report

        with contextlib.suppress(ValueError, OSError):
            self.record.report = report(self._run_dir)
        if self._command.tokens is not None:
            with contextlib.suppress(ValueError, OSError):
                known = self._command.tokens()
                self.record.samples = [
                    dataclasses.replace(s, tokens=known.get(s.step, s.tokens)) for s in self.record.samples
                ]

    def _kill(self) -> None:
        # the whole session: a launcher's ranks, their compile workers
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if self._popen.poll() is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)


class _Link:
    """The line to one rank."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.open = True
        self.facts: dict[str, Any] | None = None
        self.said: list[dict[str, Any]] = []
        self._rest = b""

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if self.facts is None:
                self.facts = message
            else:
                self.said.append(message)

    def send(self, word: str) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(word.encode() + b"\n")

    def close(self) -> None:
        self.socket.close()


def _together(said: Sequence[Mapping[str, Any]]) -> Sample:
    """One step of all ranks."""
    seconds = [one["seconds"] for one in said if one["seconds"] is not None]
    cpu = [one["cpu_seconds"] for one in said if one["cpu_seconds"] is not None]
    losses = [one["loss"] for one in said if one["loss"] is not None]
    shapes = tuple((int(rows), int(length)) for one in said for rows, length in one["shapes"])
    return Sample(
        step=said[0]["step"],
        seconds=max(seconds) if len(seconds) == len(said) else None,
        cpu_seconds=sum(cpu) if len(cpu) == len(said) else None,
        loss=sum(losses) / len(losses) if losses else None,
        shapes=shapes,
        tokens=sum(rows * length for rows, length in shapes) or None,
    )


def _last_words(log: Path, code: int, step: int) -> str:
    """Why a process ended before the end of a step: the line that says it best."""
    with contextlib.suppress(OSError):
        lines = [
            x.strip() for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()
        ]
        told = next((x.removeprefix("error: ") for x in reversed(lines) if x.startswith("error: ")), None)
        if told is not None:
            return told
        raised = next((x for x in reversed(lines) if _names_an_error(x)), None)
        if code == 0:
            return f"ended after {step - 1} steps, before the last one; give fewer --steps"
        if raised or lines:
            return f"exit code {code} in step {step}: {raised or lines[-1]}"
    return f"exit code {code} in step {step}, without a word"


def _names_an_error(line: str) -> bool:
    """The last line of a traceback: ``module.NameError: text``."""
    head, colon, _ = line.partition(":")
    return bool(colon) and " " not in head and head.endswith(("Error", "Exception"))


def require(runs: Sequence[Run], arm: str) -> None:
    """Raise with the words of an arm that came to no step: :class:`InputError` for what its program refused, else
    :class:`EnvironmentUnfit`.
    """
    own = [run for run in runs if run.arm == arm]
    failed = next((run for run in own if run.failed), None)
    if failed is not None and not any(s.seconds is not None for run in own for s in run.samples):
        raised = InputError if failed.code == 2 else EnvironmentUnfit
        raise raised(f"arm {arm}: {failed.failed}")
