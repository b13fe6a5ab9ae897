"""Draw faults, ask torch for the truth, check, judge: one fault at a time, several processes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import queue
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tests.faults import carry_out
from tests.faults.fault import injectors
from tests.faults.judge import (
    NotConfirmed,
    claims,
    compare,
    compiles_differ,
    differ,
    expected,
    mends,
    needs_eager,
    refuted,
    show,
)
from tests.faults.program import Placed, Program, draw, write
from tests.faults.truth import Truth
from tests.warm import LAUNCHING, Warm

TRIES = 8
"""Draws of one fault until torch's log shows it and nothing beside it."""
SECOND = 0.25
"""The share of programs with a second fault."""
WHOLE = 0.1
"""The share of programs that are checked as a user would: to the default depth, remedies proved, numbers compared. Of the
others what their fault needs is done: a proof where the injector counts on one, the backward graph where torch's truth
has one, numbers where these are the fault. That is a quarter of the processor time, and Dynamo says the same."""


@dataclasses.dataclass(kw_only=True)
class Result:
    """One fault: what was wrong (empty when right), and what a reader needs to look at it."""

    index: int
    injector: str
    causes: list[str]
    program: str
    path: str
    wrong: list[str] = dataclasses.field(default_factory=list)
    expected: list[str] = dataclasses.field(default_factory=list)
    got: list[str] = dataclasses.field(default_factory=list)
    log: str = ""
    rejected: list[str] = dataclasses.field(default_factory=list)
    carried_out: int = 0
    """Verified remedies done again in torch's own process."""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.wrong


class Bench:
    """What one process needs: torch's truth and a warmed interpreter for the passes of the checks."""

    def __init__(self) -> None:
        self.truth, self.warm = Truth(), Warm()
        self.mended: set[str] = set()
        """Injectors whose remedy, carried out by hand, was seen to end their fault."""

    def close(self) -> None:
        self.truth.close()
        self.warm.close()

    def check(
        self, program: Program, *, proves: bool, compares: bool = True, depth: str = ""
    ) -> dict[str, Any]:
        """The report of ``cftdiag check --model program.py:build --json FILE``; raises RuntimeError without one."""
        from cftdiag.check import strategy
        from cftdiag.cli.main import run

        answer = program.path.parent / "report.json"
        said, told = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            for module in LAUNCHING:
                stack.enter_context(mock.patch(f"{module}.ForkServer", self.warm.lend))
            stack.enter_context(contextlib.redirect_stdout(said))
            stack.enter_context(contextlib.redirect_stderr(told))
            if not compares:
                stack.enter_context(mock.patch.object(strategy, "compares_numerics", lambda *_, **__: False))
            # no clock decides: the machine may be busy
            budget = ["--timeout", "1200", "--verify-budget", "3600" if proves else "0"]
            proofs = [] if proves else ["--no-verify"]
            own = ["--depth", depth] if depth else []
            code = run(
                ["check", "--model", f"{program.path}:build", "--json", str(answer), *budget, *proofs, *own]
            )
        (program.path.parent / "check.txt").write_text(said.getvalue() + told.getvalue())
        if not answer.exists():
            raise RuntimeError(f"cftdiag check ended with {code} and no report: {told.getvalue()[-600:]}")
        return json.loads(answer.read_text())

    def used(self) -> float:
        """Processor seconds of this process and of its children so far."""
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        pids = [self.truth._process.pid]
        if self.warm._server is not None:
            pids.append(self.warm._server._process.pid)
        total = sum(u.ru_utime + u.ru_stime for u in own)
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return total


def one(
    bench: Bench,
    seed: int,
    index: int,
    folder: Path,
    *,
    injector: str = "",
    architecture: str = "",
    confirm: bool = False,
    proofs: str = "some",
) -> Result:
    """Fault ``index`` of a seed: the same program for the same numbers and the same set of injectors."""
    known = injectors()
    names = sorted(known)
    order = Random(f"{seed}/order").sample(names, k=len(names))
    name = injector or order[index % len(order)]
    rejected: list[str] = []
    whole = {"all": True, "none": False}.get(proofs, Random(f"{seed}/{index}/proofs").random() < WHOLE)
    began = bench.used()
    for attempt in range(TRIES):
        random = Random(f"{seed}/{index}/{attempt}")
        where = folder / f"{seed}-{index:03d}"
        shutil.rmtree(where, ignore_errors=True)
        second = random.random() < SECOND
        program = draw(known, name, random, where, second=second, architecture=architecture)
        backend = _backend(program, joint=whole)
        truth = bench.truth.observe(program.path, backend=backend)
        if needs_eager(program):
            truth["events"] += differ(program, truth, bench.truth.observe(program.path, backend=""))
        (where / "torch_log.txt").write_text(
            "\n\n".join(_line(e) for e in truth["events"]) + f"\n{truth['error']}\n"
        )
        try:
            fails = any(p.fault.fails_eager for p in program.placed)
            if truth["error"] and not fails and bench.truth.observe(program.path, backend="")["error"]:
                raise NotConfirmed(f"it fails without torch.compile too: {truth['error']}")
            wanted = expected(program, truth)
        except NotConfirmed as reason:
            rejected.append(f"{program.describe()}: {reason}")
            continue
        break
    else:
        return Result(
            index=index,
            injector=name,
            causes=list(known[name](Random(0)).causes),
            program="",
            path="",
            wrong=[f"torch's log confirmed none of {TRIES} draws"],
            rejected=rejected,
            seconds=bench.used() - began,
        )
    result = Result(
        index=index,
        injector=name,
        causes=[p.fault.causes[0] for p in program.placed],
        program=program.describe(),
        path=str(program.path),
        expected=[w.show() for w in wanted],
        log="\n".join(w.log for w in wanted),
        rejected=rejected,
    )
    if confirm:
        left = [
            p.injector
            for p in program.placed
            if p.fault.mended is not None and not _mended(bench, program, p)
        ]
        result.wrong = [f"the remedy of {name}, carried out by hand, leaves the fault" for name in left]
        result.seconds = bench.used() - began
        return result
    numbers = any(p.fault.kind == "numerics" for p in program.placed)
    needed = any(not p.fault.advice for p in program.placed)
    joint = numbers or backend != "eager"
    by_name = {p.injector: p for p in program.placed}

    def mended(name: str) -> bool:
        if name not in bench.mended and _mended(bench, program, by_name[name]):
            bench.mended.add(name)
        return name in bench.mended

    try:
        report = bench.check(
            program,
            proves=whole or numbers or needed,
            compares=whole or numbers,
            depth="" if joint else "trace",
        )
    except RuntimeError as error:
        result.wrong = [str(error)]
    else:
        result.got = [show(f) for f in report["findings"]]
        result.wrong = compare(report, wanted, program, mended)
        if not truth["error"]:
            result.wrong += compiles_differ(report, truth)
        _carry_out(bench, program, report, truth, backend, result)
    result.seconds = bench.used() - began
    return result


def _carry_out(
    bench: Bench,
    program: Program,
    report: dict[str, Any],
    truth: dict[str, Any],
    backend: str,
    result: Result,
) -> None:
    """Do every verified remedy again, by what its reader reads, in torch's own process."""
    after: dict[str, Any] = {}
    for finding, remedy in claims(report):
        edit = remedy["edit"]
        try:
            carry_out.read(edit)
        except carry_out.NotMechanical:
            continue
        if edit not in after:
            after[edit] = bench.truth.observe(program.path, backend=backend, edit=edit)
            result.carried_out += 1
        result.wrong += refuted(finding, remedy, program, truth, after[edit])


def _backend(program: Program, *, joint: bool = False) -> str:
    """Breaks and recompiles are Dynamo's; what fails in the backward graph, or is about it, needs AOTAutograd, and so
    does a check of depth joint: a float that AOTAutograd cannot turn into a tensor is a constant of its graphs.
    """
    needed = joint or any(p.fault.kind in ("error", "perf") for p in program.placed)
    return "aot_eager" if needed else "eager"


def _line(event: dict[str, Any]) -> str:
    return f"[{event['kind']} step {event['step']} {event['block']}] {event['text']}"


def _mended(bench: Bench, program: Program, placed: Placed) -> bool:
    """Carry out an injector's remedy in the same program and read torch's log again."""
    fault = placed.fault.mend()
    if fault is None:
        return False
    folder = program.path.parent / f"mended_{placed.injector}"
    rebuilt = rewrite(program, {placed.injector: fault}, folder)
    (after,) = (p for p in rebuilt.placed if p.injector == placed.injector)
    truth = bench.truth.observe(rebuilt.path, backend=_backend(program))
    if needs_eager(rebuilt):
        truth["events"] += differ(rebuilt, truth, bench.truth.observe(rebuilt.path, backend=""))
    return mends(placed, after, truth)


def rewrite(program: Program, faults: dict[str, Any], folder: Path) -> Program:
    """The same program with some faults replaced: same places, styles and names."""
    again = program.drawn
    choices = [dataclasses.replace(c, fault=faults.get(c.injector, c.fault)) for c in again.choices]
    return write(again.architecture, choices, folder, again.layers, again.state)


def work(seed: int, indices: Sequence[int], folder: str, send: Any, options: dict[str, Any]) -> None:
    """The body of one process: results go through ``send`` as they come."""
    os.environ.update(OMP_NUM_THREADS="1")
    bench = Bench()
    try:
        for index in indices:
            began = time.monotonic()
            try:
                result = one(bench, seed, index, Path(folder), **options)
            except Exception:  # noqa: BLE001 - one program that breaks the harness is a failure of its own
                result = Result(
                    index=index,
                    injector="?",
                    causes=["?"],
                    program="",
                    path="",
                    wrong=[traceback.format_exc()],
                )
            send((result, time.monotonic() - began))
    finally:
        bench.close()


def _process(results: Any, seed: int, indices: Sequence[int], folder: str, options: dict[str, Any]) -> None:
    work(seed, indices, folder, results.put, options)


def results_of(
    seed: int, indices: Sequence[int], folder: str, jobs: int, options: dict[str, Any]
) -> Iterator[tuple[Result, float]]:
    """The results of these faults as they come, with the seconds of the clock that each took."""
    jobs = min(jobs, len(indices))
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[Result, float]] = context.Queue()
    shares = [indices[n::jobs] for n in range(jobs)]
    processes = [context.Process(target=_process, args=(results, seed, s, folder, options)) for s in shares]
    for process in processes:
        process.start()
    left = len(indices)
    try:
        while left:
            try:
                yield results.get(timeout=5)
                left -= 1
            except queue.Empty:
                if not any(p.is_alive() for p in processes) and results.empty():
                    raise SystemExit("a process of the run has died") from None
    finally:
        for process in processes:
            process.join(timeout=20)
            if process.is_alive():
                process.terminate()


def scratch() -> Path:
    """A fresh folder for the programs of a run."""
    return Path(tempfile.mkdtemp(prefix="faults-"))
