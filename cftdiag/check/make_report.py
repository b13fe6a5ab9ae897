"""From passes and findings to the report of a check. Torch-free."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from cftdiag.check import data_forecast
from cftdiag.check.data_forecast import Swept
from cftdiag.check.judge import recompile_causes
from cftdiag.check.outcome import is_compile
from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.check.runner import BuiltPass, PassResult
from cftdiag.check.strategy import Chosen
from cftdiag.diagnose import Context
from cftdiag.events import Event
from cftdiag.findings import Finding, covers, verdict
from cftdiag.forecast.lengths import Data
from cftdiag.options import CheckOptions
from cftdiag.subject import Origin

PACKAGES = ("torch", "transformers", "triton", "cftdiag")


def make_report(
    chosen: Chosen,
    findings: tuple[Finding, ...],
    context: Context,
    *,
    origin: Origin,
    options: CheckOptions,
    timing: Mapping[str, Any],
    notes: Sequence[str] = (),
    change_first: tuple[Mapping[str, Any], ...] = (),
    uneven: BuiltPass | None = None,
) -> CheckReport:
    """The report of a check. ``context`` is the one that ``findings`` were made in. What ``uneven``, the pass
    with uneven routing, compiles beyond the main pass counts too.
    """
    main = chosen.main
    outcome = verdict(findings)
    if main.outcome != "ok" and outcome != "not_viable":
        outcome = "error"
    rows = _compiles(main.events, main, context)
    more = () if uneven is None else _beyond(main.events, uneven.events)
    if uneven is not None and more:
        ids = {e.compile_id for e in more}
        added = [r for r in _compiles(uneven.events, uneven, context) if r["compile_id"] in ids]
        rows = sorted([*rows, *({**r, "routing": "uneven"} for r in added)], key=lambda r: int(r["step"]))
    undetermined = [] if main.outcome == "ok" else [f"the {main.mode} pass did not end: {main.detail}"]
    if main.result is not None:
        undetermined += [note.meaning for note in main.result.undetermined]
    return CheckReport(
        verdict=outcome,
        subject=_subject(main, origin, options),
        depth=main.program.depth,
        target=options.compile.target,
        environment=environment(),
        blocks=_blocks(main, findings, context, more),
        findings=findings,
        compiles=tuple(rows),
        forecast=_forecast(rows, main, more),
        timing=timing,
        undetermined=tuple(dict.fromkeys([*undetermined, *notes])),
        check=None if main.result is None else main.result.check,
        change_first=change_first,
    )


def with_forecast(
    report: CheckReport,
    data: Data,
    swept: Swept,
    main: BuiltPass,
    context: Context,
    options: CheckOptions,
) -> CheckReport:
    """The report with the data's forecast, regime map and plan."""
    program = main.program
    lengths, sizes = data_forecast.by_step(swept.events, swept.lead)
    at_data = dataclasses.replace(context, lengths=lengths, batch_sizes=sizes)
    causes = recompile_causes(swept.events, at_data)
    forecast = data_forecast.forecast(data, swept.cold, swept.warmed, causes, program.depth)
    fingerprint = {
        "torch": report.environment["torch"],
        "transformers": report.environment["transformers"],
        "config_sha": program.config_sha,
        "attn": report.subject["attn"],
        "dtype": report.subject["dtype"],
        "method": options.subject.method,
        "objective": _objective(options),
        "ac": options.compile.ac,
        "scope": options.compile.scope,
        "world_size": options.parallel.world_size,
        "compile_kwargs": program.compile_kwargs,
        "target": options.compile.target,
        "depth": program.depth,
    }
    plan = data_forecast.plan(fingerprint, forecast, report.findings, options)
    # other lengths can ask for other assumptions, such as another attention kernel
    undetermined = tuple(dict.fromkeys((*report.undetermined, *swept.assumed)))
    return dataclasses.replace(report, forecast=forecast, plan=plan, undetermined=undetermined)


def timing(passes: Sequence[PassResult], skipped: Mapping[str, str], started: float) -> dict[str, Any]:
    """Seconds and memory of every pass, and why others were spared. ``started`` is of the monotonic clock."""
    rows: list[dict[str, Any]] = [
        {
            "mode": p.mode,
            "seconds": round(p.seconds, 2),
            "outcome": p.outcome,
            "peak_rss_gb": round(0.0 if p.result is None else p.result.peak_rss_gb, 3) or None,
            "steps": [round(s.seconds, 3) for s in p.steps],
        }
        for p in passes
    ]
    peaks = [row["peak_rss_gb"] for row in rows if row["peak_rss_gb"]]
    rows += [{"mode": mode, "skipped": reason} for mode, reason in skipped.items()]
    return {
        "wall_s": round(time.monotonic() - started, 2),
        "passes": rows,
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


def _subject(main: BuiltPass, origin: Origin, options: CheckOptions) -> dict[str, Any]:
    program = main.program
    o = options.for_config() if origin.from_config else options
    return {
        "name": origin.name,
        "type": origin.type,
        "model_class": program.model_class,
        "model_type": program.model_type,
        "parameters": program.parameters,
        "weights": "none" if program.weightless else "real",
        "attn": o.subject.attn,
        "dtype": o.subject.dtype,
        "lengths": [s.length for s in program.steps],
        "batch_size": o.subject.batch_size,
        "layers": o.subject.layers,
        "ac": o.compile.ac,
        "world_size": o.parallel.world_size,
        "tensor_parallel": o.parallel.tensor_parallel,
        "compile_scope": o.compile.scope,
        "compile_kwargs": dict(program.compile_kwargs),
        "packed": o.subject.packed,
        "method": o.subject.method,
        "objective": _objective(o),
    }


def _objective(options: CheckOptions) -> str:
    """Its name, that of one loss for all that have it: pre-training is the same step on other texts."""
    return "sft" if options.subject.objective == "pretrain" else options.subject.objective


def _beyond(events: Sequence[Event], other: Sequence[Event]) -> tuple[Event, ...]:
    """Compiles of ``other`` that ``events`` do not have: more of one code at one step."""
    left = Counter((e.step, _code(e)) for e in events if is_compile(e))
    found = []
    for event in other:
        if not is_compile(event):
            continue
        key = (event.step, _code(event))
        if left[key]:
            left[key] -= 1
        else:
            found.append(event)
    return tuple(found)


def _code(event: Event) -> tuple[str, int | None] | None:
    return None if event.code is None else (event.code.file, event.code.line)


def _blocks(
    main: BuiltPass, findings: Sequence[Finding], context: Context, more: Sequence[Event]
) -> tuple[BlockResult, ...]:
    recompiled = [e.block for e in main.events if e.kind == "recompile"] + [e.block for e in more]
    broken = [pattern for f in findings if f.kind == "graph_break" for pattern in f.blocks]
    # what hit the limit runs eager from then on, whatever was captured before
    limited = [pattern for f in findings if f.kind == "limit_hit" for pattern in f.blocks]
    kinds = {b.fqn: b.kind for b in context.blocks}
    compiled = {kinds.get(e.block or "") for e in main.events if is_compile(e)}
    return tuple(
        BlockResult(
            fqn=b.fqn,
            cls=b.cls,
            kind=b.kind,
            graphs=len(main.graphs.get(b.fqn, ())),
            graphs_counted=context.graphs is not None or b.kind not in compiled,
            graph_breaks=sum(covers(pattern, b.fqn) for pattern in broken),
            recompiles=recompiled.count(b.fqn),
            fullgraph=False
            if any(covers(pattern, b.fqn) for pattern in limited)
            else context.fullgraph.get(b.fqn),
        )
        for b in context.blocks
    )


def _compiles(events: Sequence[Event], run: BuiltPass, context: Context) -> list[dict[str, Any]]:
    lengths = {s.step: s.length for s in run.program.steps}
    causes = recompile_causes(events, context)
    return [
        {
            "compile_id": e.compile_id,
            "block": e.block,
            "step": e.step,
            "length": lengths.get(e.step),
            "seconds": round(float(e.seconds.get("total", sum(e.seconds.values()))), 3),
            "cause": causes.get(e.compile_id or ""),
            "guards": list(run.guards.get(e.compile_id or "", ())),
        }
        for e in events
        if is_compile(e)
    ]


def _forecast(rows: Sequence[Mapping[str, Any]], main: BuiltPass, more: Sequence[Event]) -> dict[str, Any]:
    """What the batches of the check cost, in their order: the first compile of each region is not a
    recompile.
    """
    return {
        "compiles": len(rows),
        "recompiles": sum(e.kind == "recompile" for e in main.events) + len(more),
        "limit_hit": main.has("limit_hit"),
        "steps": [{"step": c["step"], "length": c["length"], "cause": c["cause"]} for c in rows],
        "seconds": round(sum(c["seconds"] for c in rows), 3),
        "note": "without Inductor's guards" if main.program.depth in ("trace", "joint") else None,
    }
