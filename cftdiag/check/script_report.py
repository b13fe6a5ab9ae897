"""The report of a rehearsed command. Torch-free."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cftdiag.check import script_plan
from cftdiag.check.make_report import environment
from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.check.script import CONFINED, UNKNOWN, RankEnd, Rehearsed, ScriptOptions, confined
from cftdiag.error_text import shorten
from cftdiag.findings import Finding, verdict
from cftdiag.monitor.alarms import NOT_REACHED
from cftdiag.monitor.event_cause import argument_shape
from cftdiag.monitor.run_files import Step
from cftdiag.rehearse.settings import StateChange

_WHOLE = "<root>"


def build(rehearsed: Rehearsed, options: ScriptOptions, findings: tuple[Finding, ...]) -> CheckReport:
    """The report, with ``findings`` as they are after their remedies were tried."""
    end, outcome = rehearsed.first, rehearsed.first.outcome
    depth = "codegen" if options.target else options.depth
    compiles = tuple(_compiles(rehearsed))
    notes = list(dict.fromkeys(_notes(rehearsed, options, compiled=bool(compiles))))
    word = verdict(findings)
    if word != "not_viable" and (not compiles or _broken(end)):
        word = "error"
    first = rehearsed.ends[0].rank
    batches: list[dict[str, Any]] = [
        {"step": step.step, "shapes": shapes}
        for step in rehearsed.run.steps
        if step.rank == first and (shapes := _shapes(rehearsed, step))
    ]
    versions = environment()
    if outcome is not None and outcome.torch is not None:
        versions["torch"] = outcome.torch
    report = CheckReport(
        verdict=word,
        subject={
            "name": shlex.join(options.command),
            "type": "script",
            "model_class": outcome.model_class if outcome else None,
            "model_type": None,
            "parameters": outcome.parameters if outcome else None,
            "weights": "real" if options.weights else "none",
            "lengths": [shape[1] for batch in batches for shape in batch["shapes"][-1:]],
            "world_size": rehearsed.launch.world_size,
            "compile_kwargs": dict(outcome.compile_kwargs) if outcome else {},
        },
        depth=depth,
        target=options.target,
        environment=versions,
        blocks=tuple(blocks(rehearsed, findings)),
        findings=findings,
        compiles=compiles,
        forecast={
            **_forecast(rehearsed, compiles, depth),
            **script_plan.forecast(batches, [c for c in compiles if c.get("rank", first) == first]),
        },
        timing=_timing(rehearsed),
        undetermined=tuple(notes),
        script={
            "command": list(options.command),
            "launcher": rehearsed.launch.launcher,
            "ranks": [e.rank for e in rehearsed.ends],
            "steps": rehearsed.steps,
            "ended": ended(end, options),
            "written": list(rehearsed.written),
            "batches": batches,
            "callbacks": list(_callbacks(end, findings)),
        },
        coverage=_coverage(end, compiled=bool(compiles)),
    )
    plan = script_plan.plan(report.to_dict(), findings, options.torch_config)
    return dataclasses.replace(report, plan=plan)


def _shapes(rehearsed: Rehearsed, step: Step) -> list[list[int]]:
    """(rows, length) of a step's batches; of the first step, in which nothing is watched yet, what it compiled for."""
    if step.shapes:
        return [list(shape) for shape in step.shapes]
    compiled = (
        event.detail.batch or argument_shape(event)
        for event in rehearsed.run.events
        if event.kind == "compile" and (event.rank, event.step) == (step.rank, step.step)
    )
    return [list(batch) for batch in compiled if batch][:1]


def ended(end: RankEnd, options: ScriptOptions) -> str:
    """How the script came to its end, in words."""
    outcome = end.outcome
    if end.timed_out:
        return f"stopped after {options.timeout:.0f} s"
    if outcome is not None and outcome.fault is not None:
        fault = outcome.fault
        place = f" at {os.path.basename(fault.file)}:{fault.line}" if fault.file else ""
        return f"{fault.error}: {shorten(fault.message, 300)}{place}"
    if outcome is not None and outcome.ended_by_limit:
        return f"ended after {options.steps} steps"
    if end.exit_code == 0:
        return "ran to its end"
    said = f", last saying: {end.last_words}" if end.last_words else ""
    return f"ended with exit code {end.exit_code}{said}"


def _broken(end: RankEnd) -> bool:
    """True where the script did not end as it or the check wanted."""
    return not end.timed_out and end.exit_code != 0


def _notes(rehearsed: Rehearsed, options: ScriptOptions, *, compiled: bool) -> Iterator[str]:
    for end in rehearsed.ends:
        steps = max((s.step for s in rehearsed.run.steps if s.rank == end.rank), default=0)
        who = f"rank {end.rank}" if len(rehearsed.ends) > 1 else "the script"
        fault = end.outcome.fault if end.outcome else None
        if _broken(end) or end.timed_out:
            unknown = ""
            if fault is not None and not fault.compile:
                unknown = UNKNOWN if rehearsed.blame is None else rehearsed.blame.text()
                if confined(end.outcome):
                    unknown = CONFINED
            yield f"{who} made {steps} of {options.steps} steps: {ended(end, options)}{unknown}"
    if not compiled and not any(f.cause == NOT_REACHED for f in rehearsed.findings):
        yield "nothing was compiled: the script made its steps without torch.compile"
    outcome = rehearsed.first.outcome
    if outcome is not None:
        own_end = not (outcome.ended_by_limit or outcome.fault or _broken(rehearsed.first))
        if outcome.guessed and own_end and rehearsed.steps < options.steps:
            yield (
                f"the script ended by itself after {rehearsed.steps} of {options.steps} steps, and had read values that are not "
                "computed: whether it stopped by one of them is not known"
            )
        if compiled and not outcome.evaluated:
            yield f"no evaluation was met within {rehearsed.steps} steps"
        yield from outcome.undetermined
    else:
        yield "the process left no closing report, so what was made up for it is not known"
    yield from rehearsed.run.problems


def _compiles(rehearsed: Rehearsed) -> Iterator[dict[str, Any]]:
    """One row a compiled forward graph, in the order of time."""
    run, several = rehearsed.run, len(rehearsed.ends) > 1
    causes = {(e.rank, e.compile_id, e.step): e.detail.cause for e in run.events if e.kind == "recompile"}
    shapes = {(s.rank, s.step): s.shapes for s in run.steps}
    for event in run.events:
        if not event.counts_as_compile:
            continue
        batch = event.detail.batch or argument_shape(event)
        if batch is None and shapes.get((event.rank, event.step)):
            batch = shapes[event.rank, event.step][-1]
        yield {
            **({"rank": event.rank} if several else {}),
            "compile_id": event.compile_id,
            "block": event.block or (event.code.qualname if event.code else None),
            "step": event.step,
            "length": batch[1] if batch else None,
            "batch_size": batch[0] if batch else None,
            "seconds": round(float(event.seconds.get("total", sum(event.seconds.values()))), 3),
            "cause": causes.get((event.rank, event.compile_id, event.step)),
        }


def blocks(rehearsed: Rehearsed, findings: Sequence[Finding]) -> list[BlockResult]:
    """Compiled modules of the first rank, and the layers of a model that is compiled as a whole."""
    session = next((s for s in rehearsed.run.sessions if s.rank == rehearsed.first.rank), None)
    if session is None:
        return []
    outcome = rehearsed.first.outcome
    named = dict(session.blocks)
    for event in session.events:
        if event.block is not None and event.kind in ("compile", "graph_break"):
            named.setdefault(event.block, event.block_class or "")
    graphs = {
        name: sum(e.compiled.graphs for e in session.events if e.counts_as_compile and e.block == name)
        for name in named
    }
    if _WHOLE in named and outcome is not None:
        for name, cls in outcome.members:
            # a layer inside a whole model's graph has no graph of its own
            graphs.setdefault(name, graphs[_WHOLE])
            named.setdefault(name, cls)
    _shared_graphs(named, graphs, {b for f in findings if f.cause == NOT_REACHED for b in f.blocks})
    broken = [f for f in findings if f.kind == "graph_break"]
    # what hit the limit runs eager from then on, whatever was captured before
    limited = [f for f in findings if f.kind == "limit_hit"]
    return [
        BlockResult(
            fqn=name,
            cls=cls,
            kind=cls,
            graphs=graphs[name],
            graph_breaks=sum(name in f.blocks for f in broken),
            recompiles=sum(e.kind == "recompile" and e.block == name for e in session.events),
            fullgraph=not any(name in f.blocks or _WHOLE in f.blocks for f in (*broken, *limited))
            if graphs[name]
            else None,
        )
        for name, cls in named.items()
    ]


def _shared_graphs(named: Mapping[str, str], graphs: dict[str, int], idle: Collection[str]) -> None:
    """Give a block that ran without compiling anything the graphs of its kind: equal blocks share code."""
    most: dict[str, int] = {}
    for name, cls in named.items():
        most[cls] = max(most.get(cls, 0), graphs[name])
    for name, cls in named.items():
        if not graphs[name] and name not in idle:
            graphs[name] = most[cls]


def _forecast(rehearsed: Rehearsed, compiles: Sequence[dict[str, Any]], depth: str) -> dict[str, Any]:
    first = rehearsed.first.rank
    own = [c for c in compiles if c.get("rank", first) == first]
    events = [e for e in rehearsed.run.events if e.rank == first]
    return {
        "compiles": len(own),
        "recompiles": sum(e.kind == "recompile" for e in events),
        "limit_hit": any(e.kind == "limit_hit" for e in events),
        "steps": [{"step": c["step"], "length": c["length"], "cause": c["cause"]} for c in own],
        "seconds": round(sum(c["seconds"] for c in own), 3),
        "note": "without Inductor's guards" if depth in ("trace", "joint") else None,
    }


def _timing(rehearsed: Rehearsed) -> dict[str, Any]:
    peaks = [e.outcome.peak_rss_gb for e in rehearsed.ends if e.outcome and e.outcome.peak_rss_gb]
    return {
        "wall_s": round(rehearsed.seconds, 2),
        "passes": [
            {
                "mode": f"rehearsal of rank {e.rank}",
                "seconds": round(e.seconds, 2),
                "outcome": "timeout" if e.timed_out else "crash" if _broken(e) else "ok",
                "peak_rss_gb": e.outcome.peak_rss_gb if e.outcome else None,
                "steps": [round(s.seconds, 3) for s in rehearsed.run.steps if s.rank == e.rank],
            }
            for e in rehearsed.ends
        ],
        "peak_rss_gb": round(max(peaks), 3) if peaks else None,
    }


def _coverage(end: RankEnd, *, compiled: bool) -> dict[str, Any] | None:
    outcome = end.outcome
    if outcome is None or outcome.parameters is None:
        return None
    flops = outcome.compiled_flops + outcome.eager_flops
    return {
        "parameters": _share(outcome.compiled_parameters or 0, outcome.parameters) if compiled else 0.0,
        "flops": _share(outcome.compiled_flops, flops),
        "eager": [dataclasses.asdict(share) for share in outcome.eager],
    }


def _callbacks(end: RankEnd, findings: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """One row a callback of the script's trainer, its changes with the recompiles that they cause."""
    outcome = end.outcome
    if outcome is None:
        return
    flops = outcome.compiled_flops + outcome.eager_flops
    for row in outcome.callbacks:
        data = dataclasses.asdict(row)
        yield {
            **{key: value for key, value in data.items() if key not in ("flops", "changes")},
            "seconds": round(row.seconds, 3),
            "share": _share(row.flops, flops),
            "changes": [
                {**change, "causes": _caused(row.changes[i], findings)}
                for i, change in enumerate(data["changes"])
            ],
        }


#: Attributes whose guard torch does not spell by their name -> the cause of its failure.
_CAUSES = {"requires_grad": "requires_grad", "training": "training_flag"}


def _caused(change: StateChange, findings: Sequence[Finding]) -> list[str]:
    """Causes of the recompiles at the step that meets a change, by guards on what it changed."""
    named = re.compile(rf"\b{re.escape(change.attribute)}\b")
    return sorted(
        {
            f.cause
            for f in findings
            if f.kind in ("recompile", "limit_hit") and change.step in f.steps
            if f.cause == _CAUSES.get(change.attribute) or (f.guard and named.search(f.guard))
        }
    )


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
