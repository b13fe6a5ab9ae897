"""What the check says of the same program, with and without weights."""

from __future__ import annotations

import fnmatch
import resource
import time
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

import cftdiag
from cftdiag.check import strategy
from cftdiag.check.proofs import Prover
from cftdiag.check.report import CheckReport
from cftdiag.errors import CheckError
from cftdiag.options import CheckOptions
from cftdiag.passes.run_pass import run_task
from cftdiag.recipe import find_blocks
from tests.zoo import program
from tests.zoo.entries import Entry
from tests.zoo.server import CPU_S, Job

#: Imported once, ahead of every child.
_AHEAD = (CheckOptions, cftdiag.check.__class__, Prover, run_task)


class TooSlow(Exception):
    """A pass used up its processor time."""


def work(job: Job) -> dict[str, Any]:
    """Serve ``{"entry", "plan", "use_cache", "dynamic", "depth", "fast_forward": [...]}``: the blocks, and one
    prediction for each way of running.
    """
    entry, plan = Entry(**job["entry"]), program.Plan(**job["plan"])
    model, batches = program.build(entry, plan, job["use_cache"])
    try:
        blocks = [fqn for fqn, _ in find_blocks(model)]
    except ValueError as error:
        layers = [n for n, m in model.named_modules() if isinstance(m, GradientCheckpointingLayer)]
        return {"no_blocks": str(error), "layers": layers}
    subject = cftdiag.Subject(model=model, batches=batches, step=program.step)
    asked = {"dynamic": job["dynamic"], "depth": job["depth"]}
    try:
        found = {way: _predict(subject, fast_forward=way, **asked) for way in job["fast_forward"]}
    except TooSlow:
        return {"too_slow": f"a pass was stopped after {CPU_S} s of a processor"}
    return {"blocks": blocks, "predicted": found}


def _predict(subject: cftdiag.Subject, **asked: str) -> dict[str, Any]:
    started = time.monotonic()
    if asked["depth"] == "trace":  # compiled graphs are run as eager code there: their numbers are eager's
        strategy.compares_numerics = lambda *args, **kwargs: False  # this process serves one class
    try:
        report = cftdiag.check(subject, **asked, verify=False, timeout=1500.0)
    except CheckError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    crashed = any(p.get("outcome") == "crash" for p in report.timing["passes"])
    if crashed and used.ru_utime + used.ru_stime > CPU_S:
        raise TooSlow
    return told(report) | {"seconds": round(time.monotonic() - started, 1)}


def told(report: CheckReport) -> dict[str, Any]:
    """What a report says that can be held against a run."""
    breaks = [f for f in report.findings if f.kind == "graph_break"]
    names = [b.fqn for b in report.blocks]
    limits = [f for f in report.findings if f.kind == "limit_hit"]
    return {
        "verdict": report.verdict,
        "blocks": names,
        "compiles": [(c["step"], c["block"]) for c in report.compiles],
        "breaks": sorted({f"{f.where.file}:{f.where.line}" for f in breaks}),
        "broken": sorted(b.fqn for b in report.blocks if b.graph_breaks),
        "fullgraph": {b.fqn: b.fullgraph for b in report.blocks},
        "limited": sorted(
            n for n in names if any(fnmatch.fnmatchcase(n, p) for f in limits for p in f.blocks)
        ),
        "findings": [
            {
                "kind": f.kind,
                "cause": f.cause,
                "severity": f.severity,
                "blocks": list(f.blocks),
                "where": f"{f.where.file}:{f.where.line}",
                "evidence": [str(e)[:300] for e in f.evidence][:4],
            }
            for f in report.findings
        ],
        "undetermined": [u[:300] for u in report.undetermined],
        "passes": [(p.get("mode"), p.get("seconds"), p.get("skipped")) for p in report.timing["passes"]],
    }
