"""The driver of a check: it never compiles. Passes run in children; their events become findings, and
findings a verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cftdiag.check import data_forecast
from cftdiag.check.proofs import Outcome, Prover
from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.diagnose import Block, Context, diagnose
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.events import Event
from cftdiag.findings import Finding, verdict
from cftdiag.forecast.lengths import Data
from cftdiag.options import SMALL_MODEL, CheckOptions
from cftdiag.passes.launch import ForkServer, Launcher, LiveFork, Pass
from cftdiag.subject import Subject, as_subject, resolve

PACKAGES = ("torch", "transformers", "triton", "cftdiag")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """What the check is doing now, for a status line."""

    phase: str
    """``start``, ``build``, ``step``, ``compile``, ``prove`` or ``done``."""
    mode: str = ""
    """Pass: ``fullgraph``, ``collect``, ``eager`` or a remedy's summary."""
    step: int = 0
    of: int = 0
    length: int | None = None
    text: str = ""


Progress = Callable[[ProgressEvent], None]


@dataclasses.dataclass
class PassResult:
    """Everything one pass reported."""

    mode: str
    program: dict[str, Any] | None = None
    events: list[Event] = dataclasses.field(default_factory=list)
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    result: dict[str, Any] | None = None
    raised: dict[str, Any] | None = None
    outcome: str = "crash"
    detail: str = ""
    seconds: float = 0.0
    last: dict[str, Any] = dataclasses.field(default_factory=dict)
    swept: dict[str, Any] | None = None

    @property
    def whole(self) -> bool:
        """True when the pass ran to its end and every block it called was captured whole."""
        captured = self.of_result("fullgraph")
        return self.outcome == "ok" and self.raised is None and bool(captured) and all(captured.values())

    def of_result(self, key: str) -> dict[str, Any]:
        """A mapping of the pass's closing message; empty where it sent none."""
        found: dict[str, Any] = (self.result or {}).get(key, {})
        return found

    def has(self, kind: str) -> bool:
        return any(e.kind == kind for e in self.events)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swept:
    """The sweeps of all groups of ranks, by the first rank of each: passes, results, and results with every
    regime warmed.
    """

    passes: Mapping[int, PassResult]
    cold: Mapping[int, Mapping[str, Any]]
    warmed: Mapping[int, Mapping[str, Any]]


def run_check(options: CheckOptions, progress: Progress | None = None) -> CheckReport:
    """Check ``options.model``.

    Raises :class:`~cftdiag.errors.InputError` for a wrong request and
    :class:`~cftdiag.errors.EnvironmentUnfit` where this machine cannot do it. Children are stopped whatever
    happens, Ctrl-C included.
    """
    if options.model is None:
        raise InputError(
            "no model given; give --model with one of `cftdiag models`, a directory, a config.json, a hub id or file.py:build"
        )
    recipe = resolve(options.model)
    if recipe["type"] == "file":
        options.for_subject()
    launcher = ForkServer()
    try:
        return Driver(recipe, options, launcher, progress).run()
    finally:
        launcher.close()


def check(
    subject: Any,
    batches: Sequence[Mapping[str, Any]] | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> CheckReport:
    """Check a model name, a live model with batches, or a :class:`~cftdiag.subject.Subject`.

    ``options`` are the fields of :class:`~cftdiag.options.CheckOptions`. A live Subject is checked in forked
    children where forking is safe, else in this process in one pass, its remedies unproved. Raises as
    :func:`run_check`.
    """
    try:
        parsed = CheckOptions(**options)
    except (TypeError, AttributeError) as error:
        raise InputError(f"an unknown option or one of a wrong type: {error}") from error
    if isinstance(subject, str):
        return run_check(dataclasses.replace(parsed, model=subject), progress)
    live = as_subject(subject if isinstance(subject, Subject) else (subject, batches or ()), "check()")
    recipe = {"type": "live", "name": type(live.model).__name__}
    from cftdiag.passes.run_pass import run_task

    def run(task: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        run_task(task, send, live)

    if LiveFork.safe():
        return Driver(recipe, parsed, LiveFork(run), progress).run()
    if parsed.ac != "none" or parsed.world_size > 1:
        raise EnvironmentUnfit(
            "checkpointing and FSDP2 would change the live model, and this process has other threads or a GPU and so cannot be forked; "
            "give file.py:build instead"
        )

    def run_here(task: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        # a copy of the model and a Dynamo of its own: nothing of the caller's is changed but compiled code,
        # which is compiled again when needed
        import copy

        import torch

        torch._dynamo.reset()
        try:
            run_task(task, send, dataclasses.replace(live, model=copy.deepcopy(live.model)))
        finally:
            torch._dynamo.reset()

    driver = Driver(recipe, parsed, None, progress, in_process=run_here)
    driver.notes.append(
        "checked in this process, on a copy of the model, without a time limit: it has other threads or a GPU and cannot be forked"
    )
    return driver.run()


class Driver:
    """One check, from recipe to report."""

    def __init__(
        self,
        recipe: Mapping[str, Any],
        options: CheckOptions,
        launcher: Launcher | None,
        progress: Progress | None,
        in_process: Callable[[Mapping[str, Any], Callable[[dict[str, Any]], None]], None] | None = None,
    ) -> None:
        self.recipe, self.options, self.launcher, self.in_process = recipe, options, launcher, in_process
        self.progress: Progress = progress or (lambda event: None)
        self.passes: list[PassResult] = []
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self.started = time.monotonic()

    def run(self) -> CheckReport:
        data = None
        if self.options.data is not None:
            data = data_forecast.read(self.options, self.recipe)
            self.asked, self.options = self.options, data_forecast.first_options(self.options, data)
        first = self.stack_that_runs(self.run_pass("auto"))
        self.blame(first)
        second = self.second_pass(first)
        main, breaks, whole = self.choose(first, second)
        context = self.context(main, whole, self.numerics(first))
        before = self.judge(main, breaks, context)
        before = dataclasses.replace(
            before, findings=before.findings + self.other_routing(first, before.findings)
        )
        findings = before.findings
        swept = self.sweep(data, main, whole) if data is not None else None
        if swept is not None:
            before = self.judge_sweep(before, swept, context)
            findings = before.findings
        if self.options.verify and self.launcher is not None and main.outcome == "ok":
            findings = self.prove(main, before, swept)
        report = self.report(main, whole, findings, context)
        return report if swept is None or data is None else self.with_forecast(report, data, swept, main)

    def stack_that_runs(self, first: PassResult) -> PassResult:
        """Where the training step calls no block of the longest stack, the pass over the next longest that it
        does call; else the first.
        """
        program = first.program
        by_default = (
            not self.options.blocks
            and self.options.compile_scope == "block"
            and program is not None
            and not program["wrap"]
        )
        if (
            not by_default
            or first.outcome != "ok"
            or first.raised is not None
            or any(first.of_result("calls").values())
        ):
            return first
        assert program is not None
        asked, untouched = self.options, program["stacks"][:1]
        for stack in program["stacks"][1:]:
            self.options = dataclasses.replace(asked, blocks=(stack,))
            other = self.run_pass("auto")
            if any(other.of_result("calls").values()):
                self.notes.append(
                    f"the training step calls no block of {', '.join(untouched)}, so {stack} was checked; --blocks names others"
                )
                return other
            untouched.append(stack)
        self.options = asked
        return first

    # ---- the user's data ----

    def sweep(self, data: Data, main: PassResult, whole: PassResult | None) -> Swept | None:
        """Forecast every group of ranks, and once more with every regime warmed; None where the passes before
        found nothing to build on.
        """
        if self.launcher is None or main.outcome != "ok" or main.raised is not None:
            self.notes.append("no forecast: the first pass did not end")
            return None
        fullgraph = whole is main
        passes = {
            rank: self.run_pass("sweep", fullgraph=fullgraph, **task)
            for rank, task in data_forecast.tasks(data).items()
        }
        if any(p.swept is None for p in passes.values()):
            broken = next(p for p in passes.values() if p.swept is None)
            self.notes.append(f"no forecast: its pass did not end ({broken.detail or broken.outcome})")
            return None
        cold = {rank: p.swept for rank, p in passes.items() if p.swept is not None}
        warm = data_forecast.warm_of(data, cold)
        warmed = {
            rank: self.run_pass("sweep", fullgraph=fullgraph, **task).swept
            for rank, task in data_forecast.tasks(data, warm).items()
        }
        return Swept(
            passes=passes, cold=cold, warmed={rank: s for rank, s in warmed.items() if s is not None}
        )

    def judge_sweep(self, before: Outcome, swept: Swept, context: Context) -> Outcome:
        """Recompiles of the data in place of those of the first lengths; breaks and errors stay."""
        lead = min(swept.passes)
        events = [e for e in swept.passes[lead].events if e.kind != "graph_break"]
        lengths, sizes = data_forecast.by_step(events, swept.cold[lead])
        at_data = dataclasses.replace(
            context, lengths=lengths, batch_sizes=sizes, probes={}, graphs=None, fullgraph_breaks=()
        )
        found = [f for f in diagnose(events, at_data) if f.kind in ("recompile", "limit_hit")]
        kept = [f for f in before.findings if f.kind not in ("recompile", "limit_hit")]
        return dataclasses.replace(
            before, findings=(*kept, *found), compiles=len(swept.cold[lead]["compiles"])
        )

    def with_forecast(self, report: CheckReport, data: Data, swept: Swept, main: PassResult) -> CheckReport:
        """The report with the data's forecast, regime map and plan."""
        program = main.program
        assert program is not None
        lead = min(swept.passes)
        lengths, sizes = data_forecast.by_step(swept.passes[lead].events, swept.cold[lead])
        context = dataclasses.replace(self.context(main, None, None), lengths=lengths, batch_sizes=sizes)
        causes = self.causes(swept.passes[lead].events, context)
        found = data_forecast.forecast(data, swept.cold, swept.warmed, causes, program["depth"])
        fingerprint = {
            "torch": report.environment["torch"],
            "transformers": report.environment["transformers"],
            "config_sha": program["config_sha"],
            "attn": report.subject["attn"],
            "dtype": report.subject["dtype"],
            "method": self.options.method,
            "ac": self.options.ac,
            "scope": self.options.compile_scope,
            "world_size": self.options.world_size,
            "compile_kwargs": program["compile_kwargs"],
            "target": self.options.target,
            "depth": program["depth"],
        }
        plan = data_forecast.plan(fingerprint, found, report.findings, self.options)
        # other lengths can ask for other assumptions, such as another attention kernel
        assumed = [
            note["meaning"]
            for p in swept.passes.values()
            for note in (p.result or {}).get("undetermined", ())
        ]
        undetermined = tuple(dict.fromkeys((*report.undetermined, *assumed)))
        return dataclasses.replace(report, forecast=found, plan=plan, undetermined=undetermined)

    def judge(self, main: PassResult, breaks: PassResult | None, context: Context) -> Outcome:
        """Findings of a main pass, with the breaks that another pass met."""
        events = list(main.events)
        if breaks is not None and breaks is not main:
            events += [e for e in breaks.events if e.kind == "graph_break"]
        events += _raised_events(main)
        compiles = sum(_is_compile(e) for e in main.events)
        return Outcome(
            findings=tuple(diagnose(events, context)),
            compiles=compiles,
            ended=main.outcome == "ok" and main.raised is None,
        )

    def other_routing(self, first: PassResult, known: Sequence[Finding]) -> tuple[Finding, ...]:
        """What a mixture of experts does when its tokens spread unevenly, where the sizes of that spread
        reach Python or a graph's shapes.

        One assumed routing can miss a recompile: an expert with exactly one token is a size that torch
        specialises on.
        """
        notes = (first.result or {}).get("undetermined", ())
        kinds = {note.get("what") for note in notes}
        if (
            self.launcher is None
            or self.options.routing != "balanced"
            or "planted" not in kinds
            or not ("read" in kinds or _unbacked(first))
        ):
            return ()
        if first.outcome != "ok":
            return ()
        uneven = self.run_pass("auto", dataclasses.replace(self.options, routing="idle_and_single"))
        if uneven.outcome != "ok" or uneven.program is None:
            self.notes.append(f"the pass with uneven routing did not end: {uneven.detail}")
            return ()
        self.notes.append(
            "routing of tokens to experts was assumed: balanced, and again with one idle expert and one expert with a single token"
        )
        whole = uneven if uneven.mode == "fullgraph" else None
        found = self.judge(uneven, None, self.context(uneven, whole, None)).findings
        seen = {(f.kind, f.cause, f.where) for f in known}
        told = "met when one expert is idle and one gets a single token"
        return tuple(
            dataclasses.replace(f, evidence=(told, *f.evidence))
            for f in found
            if (f.kind, f.cause, f.where) not in seen
        )

    def prove(self, main: PassResult, before: Outcome, swept: Swept | None) -> tuple[Finding, ...]:
        """Apply each mechanical remedy and run the check again, within the budget."""
        options = self.options
        if swept is not None:
            # proofs run at the lengths of the data that compile something, so that they can fail
            met = [
                c for c in swept.cold[min(swept.cold)]["compiles"] if c["batch_size"] == options.batch_size
            ]
            options = dataclasses.replace(options, lengths=tuple(dict.fromkeys(c["length"] for c in met)))
        config_subject = self.recipe["type"] in ("config", "hub")
        if config_subject and options.layers in (None, "all"):
            # one block of each kind shows what all of its kind do, and a proof then costs seconds
            options = dataclasses.replace(options, layers="auto")

        def run(changed: CheckOptions, finding: Finding) -> Outcome:
            first = self.run_pass("auto", changed)
            if first.program is None:
                raise EnvironmentUnfit(first.detail)
            numerics = self.numerics(first, changed) if finding.kind == "numerics" else None
            whole = first if first.mode == "fullgraph" else None
            return self.judge(first, None, self.context(first, whole, numerics))

        assert main.program is not None
        unproved = before.findings
        if swept is not None and any(f.severity != "info" for f in unproved):
            # the same lengths without any remedy: what a proof is held against
            before = run(options, unproved[0])
        prover = Prover(
            options,
            before,
            run,
            config_subject=config_subject,
            wrap=main.program["wrap"],
            announce=lambda text: self.progress(ProgressEvent(phase="prove", text=text)),
        )
        findings = prover.prove(unproved)
        if prover.left:
            self.notes.append(
                f"{prover.left} remedies were not tried: the {options.verify_budget:.0f} s for proofs were used up"
            )
        return findings

    # ---- passes ----

    def run_pass(self, mode: str, options: CheckOptions | None = None, **more: Any) -> PassResult:
        """Run one pass to its end; what it sent is kept whatever became of it. ``more`` goes into the task."""
        task = {
            "mode": mode,
            "recipe": dict(self.recipe),
            "options": (options or self.options).to_dict(),
            **more,
        }
        found = PassResult(mode)
        self.progress(ProgressEvent(phase="start", mode=mode))
        if self.launcher is None:
            assert self.in_process is not None
            started = time.monotonic()
            self.in_process(task, lambda message: self.take(found, message))
            found.outcome, found.seconds = "ok", time.monotonic() - started
        else:
            running = Pass(self.launcher, task, self.options.timeout)
            with contextlib.closing(
                running.__iter__()
            ) as messages:  # a refused input stops the child at once, not when Python gets to it
                for message in messages:
                    self.take(found, message)
            found.outcome, found.detail, found.seconds = running.outcome, running.detail, running.seconds
        self.passes.append(found)
        return found

    def take(self, found: PassResult, message: dict[str, Any]) -> None:
        match message["type"]:
            case "event":
                found.events.append(Event.from_dict(message["event"]))
            case "progress":
                found.last = message
                fields = {k: message[k] for k in ("phase", "mode", "step", "of", "length") if k in message}
                self.progress(ProgressEvent(**fields))
            case "program":
                found.program, found.mode = message, message["mode"]
            case "step":
                found.steps.append(message)
            case "result":
                found.result = message
            case "forecast":
                found.swept = message["swept"]
            case "raised":
                found.raised = message
            case "input_error":
                raise InputError(message["message"])
            case "unfit":
                raise EnvironmentUnfit(message["message"])

    def second_pass(self, first: PassResult) -> PassResult | None:
        """The other way of compiling, where it can differ from the first."""
        assert first.program is not None
        other = "collect" if first.mode == "fullgraph" else "fullgraph"
        reason = self.why_not_second(first)
        if reason is not None:
            self.skipped[other] = reason
            return None
        return self.run_pass(other)

    def why_not_second(self, first: PassResult) -> str | None:
        assert first.program is not None
        if self.launcher is None:
            return "a live Subject in a process that cannot be forked is compiled once"
        if first.program["wrap"]:
            return "the subject compiles itself (wrap)"
        if first.outcome == "timeout":
            return "the first pass did not end in time"
        if first.mode == "fullgraph":
            if first.whole and not _unbacked(first):
                return "every block was captured whole and no size or number was read from a tensor, so without fullgraph the same graphs come out"
            return None
        graphs, called = first.of_result("graphs"), first.of_result("calls")
        ended = first.outcome == "ok" and first.raised is None and not first.has("graph_break")
        compiled = all(e.detail.get("status") == "ok" for e in first.events if e.kind == "compile")
        if ended and compiled and called and all(graphs.get(fqn) for fqn in called):
            return "no graph broke and every block ran in a graph, so fullgraph=True captures the same"
        return None

    def choose(
        self, first: PassResult, second: PassResult | None
    ) -> tuple[PassResult, PassResult | None, PassResult | None]:
        """(the pass whose recompiles count, the pass that met the breaks, the fullgraph pass)."""
        by_mode = {p.mode: p for p in (first, second) if p is not None}
        whole, collect = by_mode.get("fullgraph"), by_mode.get("collect")
        asked_whole = first.mode == "fullgraph"
        if asked_whole and whole is not None and (whole.whole or collect is None):
            return whole, collect, whole
        assert collect is not None
        return collect, collect, whole

    def blame(self, first: PassResult) -> None:
        """A failure that the program also has without compiling is the program's: exit 2, not a finding."""
        if first.program is None:
            if first.outcome == "timeout":
                raise EnvironmentUnfit(
                    f"the model was not built within {self.options.timeout:.0f} s; raise --timeout or take fewer --layers"
                )
            raise EnvironmentUnfit(
                f"the process that builds the model ended: {first.detail or 'no reason given'}"
            )
        raised = first.raised
        if raised is None or raised["compile"] or self.launcher is None:
            return
        eager = self.run_pass("eager")
        if eager.raised is not None and eager.raised["error"] == raised["error"]:
            where = eager.raised["where"] or {}
            place = f" at {os.path.basename(where['file'])}:{where['line']}" if where.get("file") else ""
            raise InputError(
                f"step {eager.raised['step']} fails without torch.compile too: {eager.raised['error']}: {eager.raised['message'][:300]}{place}"
            )

    # ---- judging ----

    def numerics(self, first: PassResult, options: CheckOptions | None = None) -> dict[str, Any] | None:
        """Compiled against eager on a subject with real weights, each from a virgin model; None where it was
        not or could not be compared.
        """
        program = first.program
        assert program is not None
        if (
            program["weightless"]
            or self.launcher is None
            or first.outcome != "ok"
            or first.raised is not None
        ):
            return None
        if program["parameters"] >= SMALL_MODEL and not self.options.numerics:
            return None
        with tempfile.TemporaryDirectory(prefix="cftdiag-") as folder:
            saved = str(Path(folder) / "reference.pt")
            if not _compared(self.run_pass("reference", options, save=saved)):
                return None
            found = _compared(self.run_pass("numerics", options, compare=saved))
            if found and not found["numerics"]["ok"]:
                again = _compared(self.run_pass("reference", options, compare=saved))
                if not again or not again["numerics"]["ok"]:
                    self.notes.append(
                        "numerics: the model gives other results each time it runs eagerly under one seed, so nothing was compared"
                    )
                    return None
        comparison: dict[str, Any] | None = found["numerics"] if found else None
        return comparison

    def context(self, main: PassResult, whole: PassResult | None, numerics: dict[str, Any] | None) -> Context:
        program = main.program
        assert program is not None
        result = main.result or {}
        captured: dict[str, bool | None] = {b["fqn"]: None for b in program["blocks"]}
        captured |= (whole.result or {}).get("fullgraph", {}) if whole is not None and whole.result else {}
        if (
            whole is None
            and not program["wrap"]
            and "fullgraph" in self.skipped
            and self.skipped["fullgraph"].startswith("no graph broke")
        ):
            captured = dict.fromkeys(captured, True)
        probes: dict[str, Any] = {
            "calls": result.get("calls", {}),
            "late_hooks": result.get("late_hooks", []),
            "saved_tensor_hooks": result.get("saved_tensor_hooks", []),
            "main_thread_limit": program["limit"],
        }
        if numerics is not None:
            probes["numerics"] = numerics
        if self.options.compile_scope == "none":
            self.notes.append("nothing was compiled, as --compile-scope none asks")
            probes.pop("calls")
        if main.raised is not None:
            probes["captured_error"] = {"type": main.raised["error"], "message": main.raised["message"]}
        if main.outcome == "ok" and main.raised is None and not program["wrap"]:
            never = [b["fqn"] for b in program["blocks"] if not result.get("calls", {}).get(b["fqn"])]
            if never and self.options.compile_scope in ("block", "block+loss"):
                probes["never_run"] = never
        if main.outcome == "timeout" and main.last.get("phase") == "step":
            probes["timeout"] = {
                "seconds": self.options.timeout,
                "phase": main.last.get("phase"),
                "step": main.last.get("step"),
            }
        return Context(
            blocks=tuple(
                Block(fqn=b["fqn"], cls=b["class"], kind=b["kind"], index=b["index"])
                for b in program["blocks"]
            ),
            lengths=tuple(s["length"] for s in program["steps"]),
            batch_sizes=tuple(s["batch_size"] for s in program["steps"]),
            graphs=None if self.options.compile_scope == "none" else _graphs(result, program["wrap"]),
            ran=result.get("graphs", {}),
            fullgraph=captured,
            fullgraph_breaks=tuple(e for e in whole.events if e.kind in ("graph_break", "error"))
            if whole is not None and whole is not main
            else (),
            wrap=program["wrap"],
            ac=self.options.ac,
            scope=self.options.compile_scope,
            depth=program["depth"],
            limit=program["limit"] or Context.limit,
            compile_kwargs=program["compile_kwargs"],
            probes=probes,
        )

    def report(
        self, main: PassResult, whole: PassResult | None, findings: tuple[Finding, ...], context: Context
    ) -> CheckReport:
        program, result = main.program, main.result or {}
        assert program is not None
        outcome = verdict(findings)
        if main.outcome != "ok" and outcome != "not_viable":
            outcome = "error"
        compiles = self.compiles(main, context)
        undetermined = [note["meaning"] for note in result.get("undetermined", ())] + self.notes
        if main.outcome != "ok":
            undetermined.insert(0, f"the {main.mode} pass did not end: {main.detail}")
        return CheckReport(
            verdict=outcome,
            subject=self.subject(program),
            depth=program["depth"],
            target=self.options.target,
            environment=environment(),
            blocks=tuple(self.block_results(main, whole, findings, context)),
            findings=findings,
            compiles=tuple(compiles),
            forecast=forecast(compiles, main),
            timing=self.timing(),
            undetermined=tuple(dict.fromkeys(undetermined)),
            check=result.get("check"),
        )

    def subject(self, program: Mapping[str, Any]) -> dict[str, Any]:
        o = self.options.for_config() if self.recipe["type"] in ("config", "hub") else self.options
        return {
            "name": self.recipe["name"],
            "type": self.recipe["type"],
            "model_class": program["model_class"],
            "model_type": program["model_type"],
            "parameters": program["parameters"],
            "weights": "none" if program["weightless"] else "real",
            "attn": o.attn,
            "dtype": o.dtype,
            "lengths": [s["length"] for s in program["steps"]],
            "batch_size": o.batch_size,
            "layers": o.layers,
            "ac": o.ac,
            "world_size": o.world_size,
            "compile_scope": o.compile_scope,
            "compile_kwargs": dict(program["compile_kwargs"]),
            "packed": o.packed,
            "method": o.method,
        }

    def block_results(
        self, main: PassResult, whole: PassResult | None, findings: Sequence[Finding], context: Context
    ) -> list[BlockResult]:
        graphs = (main.result or {}).get("graphs", {})
        recompiles: dict[str, int] = {}
        for event in main.events:
            if event.kind == "recompile" and event.block:
                recompiles[event.block] = recompiles.get(event.block, 0) + 1
        breaks: dict[str, int] = {}
        for finding in findings:
            if finding.kind == "graph_break":
                for fqn in finding.blocks:
                    breaks[fqn] = breaks.get(fqn, 0) + 1
        return [
            BlockResult(
                fqn=b.fqn,
                cls=b.cls,
                kind=b.kind,
                graphs=len(graphs.get(b.fqn, ())),
                graph_breaks=sum(n for pattern, n in breaks.items() if _covers(pattern, b.fqn)),
                recompiles=recompiles.get(b.fqn, 0),
                fullgraph=(context.fullgraph or {}).get(b.fqn),
            )
            for b in context.blocks
        ]

    def compiles(self, main: PassResult, context: Context) -> list[dict[str, Any]]:
        lengths = {s["step"]: s["length"] for s in (main.program or {}).get("steps", ())}
        causes = self.causes(main.events, context)
        return [
            {
                "compile_id": e.compile_id,
                "block": e.block,
                "step": e.step,
                "length": lengths.get(e.step),
                "seconds": round(float(e.seconds.get("total", sum(e.seconds.values()))), 3),
                "cause": causes.get(e.compile_id or ""),
            }
            for e in main.events
            if _is_compile(e)
        ]

    def causes(self, events: Sequence[Event], context: Context) -> dict[str, str]:
        """Compile id -> cause, for every recompile."""
        # each with what came before it, which tells a change in time from a difference between blocks; facts
        # that are not events stay out
        alone = dataclasses.replace(context, probes={}, graphs=None, fullgraph_breaks=())
        found: dict[str, str] = {}
        met: Counter[str] = Counter()
        for i, event in enumerate(events):
            if event.kind == "recompile" and event.compile_id is not None:
                now: Counter[str] = Counter()
                for finding in diagnose(events[: i + 1], alone):
                    if finding.kind == "recompile":
                        now[finding.cause] += finding.count
                more = now - met
                if more:
                    found[event.compile_id] = next(iter(more))
                met = now
        return found

    def timing(self) -> dict[str, Any]:
        passes: list[dict[str, Any]] = [
            {
                "mode": p.mode,
                "seconds": round(p.seconds, 2),
                "outcome": p.outcome,
                "peak_rss_gb": round((p.result or {}).get("peak_rss_gb", 0.0), 3) or None,
                "steps": [round(s["seconds"], 3) for s in p.steps],
            }
            for p in self.passes
        ]
        passes += [{"mode": mode, "skipped": reason} for mode, reason in self.skipped.items()]
        peaks = [p["peak_rss_gb"] for p in passes if p.get("peak_rss_gb")]
        return {
            "wall_s": round(time.monotonic() - self.started, 2),
            "passes": passes,
            "peak_rss_gb": max(peaks, default=None),
        }


def environment() -> dict[str, Any]:
    """Versions of what decides a verdict. Reads package metadata, imports nothing."""
    versions: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def forecast(compiles: Sequence[Mapping[str, Any]], main: PassResult) -> dict[str, Any]:
    """What the batches of the check cost, in their order: the first compile of each region is not a
    recompile.
    """
    program = main.program or {}
    note = "without Inductor's guards" if program.get("depth") in ("trace", "joint") else None
    return {
        "compiles": len(compiles),
        "recompiles": sum(e.kind == "recompile" for e in main.events),
        "limit_hit": main.has("limit_hit"),
        "steps": [{"step": c["step"], "length": c["length"], "cause": c["cause"]} for c in compiles],
        "seconds": round(sum(c["seconds"] for c in compiles), 3),
        "note": note,
    }


def _graphs(result: Mapping[str, Any], wrap: bool) -> dict[str, int] | None:
    """Graphs by block, zero for a block that was called and ran none; None where a subject's own backends
    could not be counted.
    """
    if not result or (wrap and not result["graphs"]):
        return None
    return {fqn: len(result["graphs"].get(fqn, ())) for fqn in [*result["calls"], *result["graphs"]]}


def _is_compile(event: Event) -> bool:
    return event.kind == "compile" and event.detail.get("status") == "ok" and event.region != "backward"


def _compared(found: PassResult) -> dict[str, Any] | None:
    return found.result if found.outcome == "ok" and found.raised is None else None


def _unbacked(found: PassResult) -> bool:
    return any(e.kind == "compile" and e.detail.get("unbacked") for e in found.events)


def _covers(pattern: str, fqn: str) -> bool:
    from fnmatch import fnmatchcase

    return pattern == fqn or fnmatchcase(fqn, pattern)


def _raised_events(found: PassResult) -> list[Event]:
    """An exception that left the step is an event too, unless the recorder has already told it."""
    raised = found.raised
    if raised is None:
        return []
    told = any(e.kind == "error" and e.detail.get("type") == raised["error"] for e in found.events)
    if told:
        return []
    from cftdiag.events import Frame

    where = raised["where"]
    return [
        Event(
            kind="error",
            time=time.time(),
            step=raised["step"],
            stack=(Frame(**where),) if where else (),
            detail={
                "type": raised["error"],
                "message": raised["message"],
                "phase": "step",
                "fullgraph": found.mode == "fullgraph",
            },
        )
    ]
