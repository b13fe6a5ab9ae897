"""Which comparison fits two documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Diff, Figure, in_order
from cftdiag.compare.checks import compare_checks, figures
from cftdiag.compare.kernels import compare_kernels
from cftdiag.compare.normal import file_name
from cftdiag.compare.plans import compare_plans
from cftdiag.compare.runs import compare_runs, run_figures
from cftdiag.monitor.as_check import as_check

#: Schema -> kind of document.
KINDS = {
    "cftdiag.check/1": "check",
    "cftdiag.run/1": "run",
    "cftdiag.kernels/1": "kernels",
    "cftdiag.plan/1": "plan",
}

#: Seconds below which a compile or a step is too short for a slowdown to mean anything.
_SHORT = {"compile": 1.0, "steady step": 0.0}


def diff(before: Mapping[str, Any], after: Mapping[str, Any], *, max_slowdown: float | None = None) -> Diff:
    """What changed from one document to another: dicts of ``cftdiag.check/1``, ``cftdiag.run/1``,
    ``cftdiag.kernels/1`` or ``cftdiag.plan/1``, both of one kind, or a check and a run.

    Seconds are told and not judged, for they are the machine's; with ``max_slowdown`` compiling or a steady
    step that takes more than so many times as long is a regression. Raises ``ValueError`` for two documents
    that cannot be compared.
    """
    before, after = (json.loads(json.dumps(d, default=str)) for d in (before, after))  # as if both were read
    kinds = [_kind(document) for document in (before, after)]
    inconclusive = False
    numbers: Sequence[Figure] = ()
    if kinds == ["kernels", "kernels"]:
        changes = compare_kernels(before, after)
    elif kinds == ["plan", "plan"]:
        changes = compare_plans(before, after)
    elif kinds == ["run", "run"]:
        changes, numbers = compare_runs(before, after), run_figures(before, after)
        inconclusive = before["verdict"] == after["verdict"] == "error"
    elif set(kinds) <= {"check", "run"}:
        a, b = (as_check(d) if kind == "run" else d for d, kind in zip((before, after), kinds, strict=True))
        changes = compare_checks(a, b, subjects=kinds[0] == kinds[1])
        numbers = figures(a, b)
        inconclusive = a["verdict"] == b["verdict"] == "error"
    else:
        raise ValueError(
            f"a {kinds[0]} and a {kinds[1]} have nothing to compare; give two checks, two runs, a check and a run, "
            "two kernels reports or two plans"
        )
    changes += _slower(numbers, max_slowdown)
    return Diff(
        kind=kinds[0] if kinds[0] == kinds[1] else " and ".join(kinds),
        before=_about(before, kinds[0]),
        after=_about(after, kinds[1]),
        changes=in_order(changes),
        figures=tuple(numbers),
        inconclusive=inconclusive,
    )


def _kind(document: Mapping[str, Any]) -> str:
    schema = document.get("schema")
    if schema not in KINDS:
        raise ValueError(f"the schema is {schema!r}, not one of {', '.join(KINDS)}")
    return KINDS[schema]


def _about(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if kind == "check":
        name = document["subject"].get("name")
    elif kind == "run":
        name = file_name(document["source"].get("path"))
    elif kind == "kernels":
        name = f"{document.get('model')} for {document.get('target')}"
    else:
        name = document["fingerprint"].get("config_sha")
    environment = document.get("environment")
    if environment is None:
        environment = {key: document["fingerprint"].get(key) for key in ("torch", "transformers")}
    return {
        "kind": kind,
        "name": str(name),
        "verdict": document.get("verdict"),
        "environment": dict(environment),
    }


def _slower(numbers: Sequence[Figure], factor: float | None) -> list[Change]:
    if factor is None:
        return []
    return [
        Change(
            section="seconds",
            what=f.name,
            before=f.before,
            after=f.after,
            effect="worse",
            severity="warning",
        )
        for f in numbers
        if f.name in _SHORT
        and f.before
        and f.after
        and f.after > factor * f.before
        and f.after - f.before >= _SHORT[f.name]
    ]
