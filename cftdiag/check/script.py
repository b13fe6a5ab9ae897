"""Checking an unmodified training command: its ranks are rehearsed in processes of their own, and judged by
what their monitors saw.

Torch-free: the script's own interpreter imports torch, this process does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.check import launchers, rank_order
from cftdiag.check.runner import Progress
from cftdiag.error_text import shorten
from cftdiag.errors import CheckError, EnvironmentUnfit, InputError
from cftdiag.findings import SEVERITIES, Finding
from cftdiag.monitor import rundir
from cftdiag.monitor.recorded_run import Run, load_run
from cftdiag.passes.launch import die_with_parent
from cftdiag.passes.messages import ProgressEvent
from cftdiag.rehearse import confine, trackers
from cftdiag.rehearse.absent_packages import KERNELS, STAND_INS
from cftdiag.rehearse.begin import writable
from cftdiag.rehearse.settings import COLLECTIVES, FILES, VARIABLE, WORK, Outcome, Rehearsal
from cftdiag.target.step_work import StepMemory
from cftdiag.target.work import Launch, Work

INJECT = Path(__file__).resolve().parents[1] / "rehearse" / "inject"
PACKAGE = Path(__file__).resolve().parents[2]
#: Exit code of a process that could not be made a rehearsal, and so did not run.
REFUSED = 86
#: Device that answers to CUDA where no target is named.
DEFAULT_DEVICE = "h200"
#: Seconds between two looks at the ranks.
POLL_S = 0.2
#: Seconds that a rank out of time gets to say what it knows.
GRACE_S = 10.0
#: Memory of a run with plain arithmetic.
PLAIN_BYTES = 12 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """What is asked of the check of a command."""

    command: tuple[str, ...]
    steps: int = 30
    """Optimizer steps to rehearse."""
    ranks: tuple[int, ...] = (0,)
    world_size: int | None = None
    """Over what the launcher says."""
    depth: str = "joint"
    target: str | None = None
    weights: bool = False
    stand_ins: tuple[str, ...] = ()
    """Packages of kernels that are not here and are stood in for."""
    count: bool = False
    """Count what the last step launches."""
    eager: bool = False
    """Compile nothing."""
    plain: bool = False
    """Compute everything at small size and compile nothing."""
    routing: str = "balanced"
    timeout: float = 600.0
    """Seconds for each rehearsal."""
    torch_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compile_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pad_to_multiple_of: int | None = None
    drop_last: bool = False
    input_requires_grad: bool = False
    model_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    verify: bool = True
    verify_budget: float = 300.0
    keep: str | None = None
    """Folder that keeps what the script wrote."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps {self.steps} must be a positive whole number")
        if self.weights and self.target is not None:
            raise InputError("code for --target is generated and not run; drop --weights or --target")
        if self.keep is not None and os.path.isdir(self.keep) and os.listdir(self.keep):
            raise InputError(f"{self.keep} is not empty; give --keep a new folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank's process ended."""

    rank: int
    exit_code: int
    timed_out: bool
    outcome: Outcome | None
    last_words: str
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLaunches:
    """What one optimizer step launched, and held in memory."""

    step: int
    eager: Work
    """Outside compiled graphs."""
    compiled: Work
    memory: StepMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """All ranks of one rehearsal."""

    launch: launchers.Launch
    run: Run
    ends: tuple[RankEnd, ...]
    seconds: float
    written: tuple[str, ...]
    """Paths that the script believes it wrote."""
    blame: Blame | None = None
    """Whose the failure is that ended the script; None where none did, or where that is not known."""
    work: StepLaunches | None = None
    """What the last step of the first rank launched, where it was counted and all of its code is known."""
    order: Finding | None = None
    """Where ranks part in the order of their collectives."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the events of all ranks, and of their order."""
        found = (*self.run.findings, *(() if self.order is None else (self.order,)))
        return tuple(sorted(found, key=lambda f: -SEVERITIES.index(f.severity)))

    @property
    def first(self) -> RankEnd:
        """The rank that speaks for the others."""
        return self.ends[0]

    @property
    def steps(self) -> int:
        """Finished optimizer steps of the rank that made most."""
        return max((step.step for step in self.run.steps), default=0)


def rehearse(options: ScriptOptions, progress: Progress) -> Rehearsed:
    """Run every asked-for rank to its end; children are stopped and scratch files removed whatever happens."""
    launch = launchers.read(options.command, options.world_size)
    wrong = [rank for rank in options.ranks if rank >= launch.world_size]
    if wrong:
        raise InputError(
            f"rank {wrong[0]} is not one of {launch.world_size}; give --rank 0 to {launch.world_size - 1}"
        )
    with _scratch(options.keep) as scratch:
        started = time.monotonic()
        ends = list(_Ranks(launch, options, scratch, progress).run())
        written = {
            str(path.relative_to(root))
            for rank in options.ranks
            if (root := scratch / f"rank{rank}" / FILES).is_dir()
            for path in root.rglob("*")
            if path.is_file()
        }
        calls = {e.rank: rank_order.read(scratch / f"rank{e.rank}" / COLLECTIVES) for e in ends}
        return Rehearsed(
            launch=launch,
            order=rank_order.divergence(calls, ended=all(e.exit_code == 0 and not e.timed_out for e in ends)),
            run=_of_compiling(load_run(scratch / "run"), ends),
            ends=tuple(sorted(ends, key=lambda e: options.ranks.index(e.rank))),
            seconds=time.monotonic() - started,
            work=_work(scratch / f"rank{options.ranks[0]}" / WORK),
            written=tuple("/" + path for path in sorted(written)),
        )


def _work(path: Path) -> StepLaunches | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    eager, compiled = (Work(tuple(Launch(**one) for one in data[name])) for name in ("eager", "compiled"))
    memory = StepMemory(**data["memory"])
    return StepLaunches(step=data["step"], eager=eager, compiled=compiled, memory=memory)


def _of_compiling(run: Run, ends: Sequence[RankEnd]) -> Run:
    """The run without the exceptions that had nothing to do with compiling: they end a script, and say nothing
    of it.
    """
    other = {e.rank for e in ends if e.outcome and e.outcome.fault and not e.outcome.fault.compile}
    for session in run.sessions:
        if session.rank in other:
            session.events = [e for e in session.events if e.kind != "error" or e.failed.phase != "step"]
    return run


@contextlib.contextmanager
def _scratch(keep: str | None) -> Iterator[Path]:
    try:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="cftdiag-rehearsal-"))
        else:
            # where it is to stay: a copy would fill the holes of checkpoints
            folder = Path(keep).absolute()
            folder.mkdir(parents=True, exist_ok=True)
        (folder / "run" / rundir.EVENTS).mkdir(parents=True)
        (folder / "run" / rundir.RANKS).mkdir()
    except OSError as error:
        raise EnvironmentUnfit(
            f"no scratch folder can be made ({error}); free disk space, set TMPDIR or give another --keep"
        ) from error
    try:
        yield folder
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


class _Ranks:
    """The processes of one rehearsal, at most one a core at a time."""

    def __init__(
        self, launch: launchers.Launch, options: ScriptOptions, scratch: Path, progress: Progress
    ) -> None:
        self.launch, self.options, self.scratch, self.progress = launch, options, scratch, progress
        self.waiting = list(options.ranks)
        self.running: dict[int, tuple[subprocess.Popen[bytes], float]] = {}

    def run(self) -> Iterator[RankEnd]:
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < (os.cpu_count() or 1):
                    self._start(self.waiting.pop(0))
                time.sleep(POLL_S)
                yield from self._ended()
                self._tell()
        finally:
            for process, _ in self.running.values():
                _kill(process)
            for rank in self.options.ranks:
                _kill_strays(str(self.scratch / f"rank{rank}"))

    def _start(self, rank: int) -> None:
        folder = self.scratch / f"rank{rank}"
        for name in ("tmp", "trackers", FILES):
            (folder / name).mkdir(parents=True)
        settings = Rehearsal(
            run_dir=str(self.scratch / "run"),
            scratch=str(folder),
            steps=self.options.steps,
            depth=self.options.depth,
            target=self.options.target,
            device=None if self.options.target == "cpu" else self.options.target or DEFAULT_DEVICE,
            rank=rank,
            world_size=self.launch.world_size,
            local_world_size=self.launch.local_world_size,
            compared=len(self.options.ranks) > 1,
            weights=self.options.weights,
            count=self.options.count,
            eager=self.options.eager,
            plain=self.options.plain,
            stand_ins=self.options.stand_ins,
            routing=self.options.routing,
            torch_config=self.options.torch_config,
            compile_kwargs=self.options.compile_kwargs,
            pad_to_multiple_of=self.options.pad_to_multiple_of,
            drop_last=self.options.drop_last,
            input_requires_grad=self.options.input_requires_grad,
            model_config=self.options.model_config,
        )
        env = {
            **os.environ,
            **self.options.env,
            **self.launch.environment(rank),
            **trackers.environment(str(folder)),
            VARIABLE: settings.to_json(),
            "CFTDIAG_PACKAGE": str(PACKAGE),
            "TMPDIR": str(folder / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "1",
            # a GPU that is here is left alone
            "CUDA_VISIBLE_DEVICES": "",
        }
        # an empty part of PYTHONPATH means the working directory: keep what the user has exactly
        env["PYTHONPATH"] = str(INJECT) + (os.pathsep + env["PYTHONPATH"] if "PYTHONPATH" in env else "")
        allowed = writable(settings)

        def prepare() -> None:
            die_with_parent()
            # here, so that it holds for whatever the command starts and however it starts it
            confine.confine(allowed)
            if self.options.plain:
                # what is computed with can be larger than this machine
                resource.setrlimit(resource.RLIMIT_DATA, (PLAIN_BYTES, PLAIN_BYTES))

        log = open(folder / "output.txt", "wb")
        try:
            process = subprocess.Popen(
                self.launch.command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as error:
            raise InputError(
                f"cannot start {self.launch.command[0]}: {error.strerror or error}; check the command after --"
            ) from error
        finally:
            log.close()
        self.running[rank] = (process, time.monotonic())

    def _ended(self) -> Iterator[RankEnd]:
        for rank, (process, started) in list(self.running.items()):
            seconds = time.monotonic() - started
            timed_out = seconds > self.options.timeout
            if process.poll() is None and not timed_out:
                continue
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            _kill(process)
            del self.running[rank]
            folder = self.scratch / f"rank{rank}"
            yield RankEnd(
                rank=rank,
                exit_code=process.returncode,
                timed_out=timed_out,
                outcome=Outcome.read(folder / "outcome.json"),
                last_words=_last_words(folder / "output.txt"),
                seconds=seconds,
            )

    def _tell(self) -> None:
        states = (rundir.read_json(p) for p in (self.scratch / "run" / rundir.RANKS).glob("rank*.json"))
        steps = max((int(state.get("step") or 0) for state in states if state), default=0)
        self.progress(
            ProgressEvent(phase="step", mode="rehearsing", step=steps + 1, of=self.options.steps)
            if steps
            else ProgressEvent(phase="start", mode="rehearsing", text="starting the script")
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_strays(scratch: str) -> None:
    """End what left the process group: every process that carries this rank's scratch folder in its
    environment.
    """
    mark = f'"scratch": "{scratch}"'.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue  # ended meanwhile, or not ours


def _last_words(path: Path) -> str:
    """The last line that the process printed, readable whatever it printed."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(stream.tell() - 4096, 0))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def with_stand_ins(
    rehearsed: Rehearsed, options: ScriptOptions, progress: Progress
) -> tuple[Rehearsed, ScriptOptions]:
    """Where the script ended for want of a package of kernels that can be stood in for: rehearse it with that, and
    return the options that did.
    """
    outcome = rehearsed.first.outcome
    missing = outcome.fault.missing if outcome is not None and outcome.fault is not None else None
    package = (missing or "").partition(".")[0]
    if package not in STAND_INS or package in options.stand_ins:
        return rehearsed, options
    if options.keep is not None:
        # what the first rehearsal has kept there: it is new, and ours
        shutil.rmtree(options.keep, ignore_errors=True)
    more = dataclasses.replace(options, stand_ins=(*options.stand_ins, package))
    return with_stand_ins(rehearse(more, progress), more, progress)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blame:
    """What a run with plain arithmetic said of a failure."""

    by_script: bool
    """True where the script failed alike, False where it did not fail."""
    stood_in: tuple[str, ...] = ()
    """What was answered for in that run too."""

    def text(self) -> str:
        """The end of a sentence that tells the failure."""
        if not self.by_script:
            return "; it does not fail with plain arithmetic and without torch.compile: it is the rehearsal that breaks it"
        but = f", where {' and '.join(self.stood_in)} were stood in for as well" if self.stood_in else ""
        return f"; it fails with plain arithmetic and without torch.compile too{but}"


def with_blame(rehearsed: Rehearsed, options: ScriptOptions, progress: Progress) -> Rehearsed:
    """Where a failure that was no compile's ended the script: run it once more, computing at small size, as far as
    the failure.
    """
    outcome = rehearsed.first.outcome
    fault = outcome.fault if outcome is not None else None
    known = fault is None or fault.compile or fault.error in _OWN_FAULTS or confined(outcome)
    if known or rehearsed.first.timed_out or options.weights or rehearsed.steps >= PLAIN_STEPS:
        return rehearsed
    progress(ProgressEvent(phase="prove", text="whether the script fails by itself"))
    plain = dataclasses.replace(
        options,
        plain=True,
        target=None,
        steps=rehearsed.steps + 1,
        ranks=(rehearsed.first.rank,),
        timeout=min(options.timeout, PLAIN_S),
        keep=None,
    )
    try:
        end = rehearse(plain, lambda event: None).first
    except CheckError:
        return rehearsed
    again = end.outcome
    if again is None or end.timed_out:
        return rehearsed
    assert fault is not None
    if again.fault is None:
        went_on = end.exit_code == 0
        return dataclasses.replace(rehearsed, blame=Blame(by_script=False) if went_on else None)
    alike = (again.fault.error, again.fault.file, again.fault.line) == (fault.error, fault.file, fault.line)
    blame = Blame(by_script=True, stood_in=again.stood_in) if alike else None
    return dataclasses.replace(rehearsed, blame=blame)


#: Steps after which a failure is not looked for again with plain arithmetic, and seconds for it.
PLAIN_STEPS, PLAIN_S = 5, 180.0


def judge_ends(rehearsed: Rehearsed, options: ScriptOptions) -> None:
    """Raise where the rehearsal says nothing about compiling, with one line on why."""
    end, outcome = rehearsed.first, rehearsed.first.outcome
    if end.exit_code == REFUSED:
        raise EnvironmentUnfit(f"{end.last_words or 'the script was not started'}; run `cftdiag doctor`")
    seen = rehearsed.steps or any(e.kind not in ("cache", "error") for e in rehearsed.run.events)
    stopped = end.timed_out or end.exit_code != 0 or outcome is None or outcome.fault is not None
    if rehearsed.steps or (seen and stopped):
        return
    if end.timed_out:
        raise EnvironmentUnfit(
            f"no optimizer step ended within {options.timeout:.0f} s; raise --timeout or shorten the script's preparation"
        )
    fault = outcome.fault if outcome is not None else None
    if fault is not None:
        place = f" at {os.path.basename(fault.file)}:{fault.line}" if fault.file else ""
        text = f"the script ended before its first step: {fault.error}: {shorten(fault.message, 300)}{place}"
        if fault.missing == "torch":
            raise EnvironmentUnfit(
                f"the interpreter of {rehearsed.launch.command[0]} has no torch; give the one that trains"
            )
        package = (fault.missing or "").partition(".")[0]
        if package in KERNELS:
            raise EnvironmentUnfit(
                f"the script imports {package}, which its interpreter has not; install it there: its kernels are not run, and "
                "no GPU is needed"
            )
        if confined(outcome):
            raise EnvironmentUnfit(f"{text}{CONFINED}")
        if fault.error in _OWN_FAULTS:
            raise InputError(f"{text}; mend the command")
        blame = rehearsed.blame
        if blame is not None and blame.by_script and not blame.stood_in:
            raise InputError(f"{text}{blame.text()}")
        raise EnvironmentUnfit(f"{text}{UNKNOWN if blame is None else blame.text()}")
    if outcome is None and end.exit_code < 0:
        raise EnvironmentUnfit(
            f"the script was killed by {signal.Signals(-end.exit_code).name} before its first step"
        )
    said = f", last saying: {end.last_words}" if end.exit_code and end.last_words else ""
    if outcome is None:
        raise InputError(
            f"{rehearsed.launch.command[0]} ended with exit code {end.exit_code} and started no Python{said}; give the command that trains"
        )
    if end.exit_code:
        raise InputError(f"the script ended with exit code {end.exit_code} before its first step{said}")
    raise InputError(
        "the script ended without an optimizer step"
        + ("" if outcome.torch else " and without importing torch")
        + "; give the command that trains"
    )


def confined(outcome: Outcome | None) -> bool:
    """Whether a failure may come of writes that a rehearsal does not let through: of native code, and of programs
    that the script starts.
    """
    error = outcome.fault.error if outcome is not None and outcome.fault is not None else ""
    missed = error in ("FileNotFoundError", "CalledProcessError", "NotADirectoryError")
    return error == "PermissionError" or (missed and outcome is not None and bool(outcome.programs))


#: End of a sentence that tells a failure by what a rehearsal does not let through.
CONFINED = "; native code, and programs that the script starts, may write to its scratch folder alone, which may be why"
#: End of a sentence that tells a failure of which no more is known.
UNKNOWN = "; not known whether it fails outside the rehearsal too"
#: Exceptions that a rehearsal does not cause.
_OWN_FAULTS = frozenset(
    {
        "SyntaxError",
        "IndentationError",
        "ModuleNotFoundError",
        "FileNotFoundError",
        "EOFError",
        "KeyboardInterrupt",
    }
)
