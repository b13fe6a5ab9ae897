"""From the steps of all arms to the answer: step times, what each gains over eager, when it has paid. Pure
functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cftdiag.bench.arms import EAGER, Arm
from cftdiag.bench.driver import Run, Sample
from cftdiag.bench.same import differences
from cftdiag.bench.statistics import (
    CONFIDENCE,
    Interval,
    break_even,
    median_interval,
    paired,
    quantile,
    saving,
)

SCHEMA = "cftdiag.bench/1"


def to_dict(
    arms: Sequence[Arm],
    runs: Sequence[Run],
    *,
    what: Mapping[str, Any],
    warmup: int,
    allowed: Collection[str] = (),
    interrupted: bool = False,
) -> dict[str, Any]:
    """The report, JSON-ready: schema ``cftdiag.bench/1``. ``what`` is copied; ``allowed`` are facts in which every
    arm may differ.
    """
    base = [run for run in runs if run.arm == EAGER]
    facts = next((run.facts for run in base if run.facts), next((r.facts for r in runs if r.facts), {}))
    return {
        "schema": SCHEMA,
        **what,
        "machine": {key: facts.get(key) for key in ("device", "torch", "threads", "world_size")},
        "confidence": CONFIDENCE,
        "warmup": warmup,
        "interrupted": interrupted,
        "arms": [
            _arm(arm, [run for run in runs if run.arm == arm.name], base, warmup, allowed) for arm in arms
        ],
    }


def clean(run: Run, warmup: int) -> dict[tuple[int, int], Sample]:
    """(round, step) -> the steps of a run after the warm-up in which nothing was compiled."""
    busy = busy_steps(run)
    return {
        (run.round, s.step): s
        for s in run.samples
        if s.step > warmup and s.seconds is not None and s.step not in busy
    }


def busy_steps(run: Run) -> set[int]:
    """Steps in which some rank compiled."""
    return {int(row["step"]) for kind in ("compiles", "recompiles") for row in run.report.get(kind, ())}


def _arm(
    arm: Arm, runs: Sequence[Run], base: Sequence[Run], warmup: int, allowed: Collection[str]
) -> dict[str, Any]:
    steps = _steps(runs, warmup)
    seconds = [s.seconds for s in steps.values() if s.seconds is not None]
    cold = [_compile_seconds(run) for run in runs if run.round == 0 and run.report]
    warm = [_compile_seconds(run) for run in runs if run.round > 0 and run.report]
    first = next((run for run in runs if run.report), None)
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    found: dict[str, Any] = {
        "arm": arm.name,
        "changes": dict(arm.changes),
        "env": dict(arm.env),
        "arguments": list(arm.arguments),
        "failed": next((run.failed for run in runs if run.failed), None),
        "steps": len(steps),
        "step_seconds": _spread(seconds),
        "cpu_seconds": _spread([s.cpu_seconds for s in steps.values() if s.cpu_seconds is not None]),
        "tokens_per_second": _tokens_per_second(list(steps.values())),
        "peak_bytes": max(peaks, default=None),
        "compile_seconds_cold": cold[0] if cold else None,
        "compile_seconds_warm": statistics.median(warm) if warm else None,
        "graphs": 0 if first is None else _on_first_rank(first, "compiles"),
        "recompiles": 0 if first is None else _on_first_rank(first, "recompiles"),
        "late_compiles": sorted({step for run in runs for step in busy_steps(run) if step > warmup}),
        "loss": None,
        "differs": [],
        "against_eager": None,
        "samples": [
            {
                "round": run.round,
                "step": s.step,
                "seconds": s.seconds,
                "cpu_seconds": s.cpu_seconds,
                "loss": s.loss,
                "tokens": s.tokens,
                "compiled": s.step in busy_steps(run),
            }
            for run in runs
            for s in run.samples
        ],
    }
    if arm.name == EAGER or not seconds:
        return found
    found["differs"] = _differs(arm, runs, base, allowed)
    if not found["differs"]:
        found["loss"] = None if "loss" in arm.may_differ | set(allowed) else _parity(runs, base)
        found["against_eager"] = _against(steps, _steps(base, warmup), found)
    return found


def _steps(runs: Sequence[Run], warmup: int) -> dict[tuple[int, int], Sample]:
    return {key: sample for run in runs for key, sample in clean(run, warmup).items()}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {name: quantile(values, share) for name, share in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))}


def _tokens_per_second(samples: Sequence[Sample]) -> float | None:
    known = [(s.tokens, s.seconds) for s in samples if s.tokens and s.seconds]
    return sum(t for t, _ in known) / sum(s for _, s in known) if known else None


def _compile_seconds(run: Run) -> float:
    return float(run.report["timing"]["compile_s"])


def _on_first_rank(run: Run, kind: str) -> int:
    """``compiles`` or ``recompiles``; a backward graph belongs to the compile of its forward."""
    return next((int(row[kind]) for row in run.report.get("by_rank", ()) if row["rank"] == 0), 0)


def _differs(arm: Arm, runs: Sequence[Run], base: Sequence[Run], allowed: Collection[str]) -> list[str]:
    """Beside what the arm is, of the first round that both have."""
    for run in runs:
        other = next((b for b in base if b.round == run.round and b.samples), None)
        if other is None or not run.samples:
            continue
        return differences(
            other.facts,
            run.facts,
            batches=([s.shapes for s in other.samples], [s.shapes for s in run.samples]),
            losses=(other.samples[0].loss, run.samples[0].loss),
            may_differ=arm.may_differ | set(allowed),
        )
    return []


def _parity(runs: Sequence[Run], base: Sequence[Run]) -> dict[str, float | int] | None:
    """How far the losses are from eager's, as a share: in the first step, and at most."""
    eager = {(run.round, s.step): s.loss for run in base for s in run.samples if s.loss is not None}
    own = {(run.round, s.step): s.loss for run in runs for s in run.samples if s.loss is not None}
    shares = [abs(a - b) / max(abs(a), 1e-12) for a, b in paired(eager, own)]
    if not shares:
        return None
    return {"first": shares[0], "most": max(shares), "steps": len(shares)}


def _against(
    own: Mapping[tuple[int, int], Sample], base: Mapping[tuple[int, int], Sample], arm: Mapping[str, Any]
) -> dict[str, Any] | None:
    both = paired(_seconds(base), _seconds(own))
    if not both:
        return None
    gain = median_interval([eager / seconds for eager, seconds in both])
    saved = median_interval([eager - seconds for eager, seconds in both])
    cold, warm = arm["compile_seconds_cold"], arm["compile_seconds_warm"]
    return {
        "pairs": len(both),
        "gain": gain.to_dict(),
        "saved_seconds": saved.to_dict(),
        "break_even_cold": _break_even(cold, saved),
        "break_even_warm": _break_even(warm, saved),
        "saved_per_1000_steps": None if cold is None else saving(cold, saved).to_dict(),
    }


def _break_even(cost: float | None, saved: Interval) -> dict[str, int | None] | None:
    if cost is None:
        return None
    low, middle, high = break_even(cost, saved)
    return {"low": low, "median": middle, "high": high}


def _seconds(samples: Mapping[tuple[int, int], Sample]) -> dict[tuple[int, int], float]:
    return {key: s.seconds for key, s in samples.items() if s.seconds is not None}
