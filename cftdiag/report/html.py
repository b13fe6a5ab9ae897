"""A check as one self-contained HTML page that asks nobody for anything. All of it can be read without its script, which
only filters, searches and shows long tables whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag import __version__
from cftdiag.findings import covers
from cftdiag.report import accepted, advice, forecast, page_parts, payoff, wording


def render(data: Mapping[str, Any]) -> str:
    """The whole page; every text of the check is escaped."""
    name, facts = wording.headline(data)
    causes = _causes(data["findings"])
    compiles = data["compiles"]
    longest = max((c.get("seconds") or 0 for c in compiles), default=0)
    return (
        page_parts.environment()
        .get_template("check.html.j2")
        .render(
            version=__version__,
            name=name,
            facts=facts,
            notes=[*wording.conditions(data), *wording.passes_not_run(data)],
            verdict=data["verdict"],
            verdict_words=wording.verdict_words(data),
            verdict_facts=wording.verdict_facts(data),
            cost=wording.cost(data),
            unseen=wording.unseen(data),
            groups=wording.block_groups(data["blocks"]),
            blocks=[_block(block, data["findings"]) for block in data["blocks"]],
            columns=[*wording.COMPILE_COLUMNS],
            compiles=[_compile(c, longest) for c in compiles[: page_parts.ROWS]],
            compiles_in_all=len(compiles),
            more_compiles=page_parts.embedded(
                [wording.compile_row(c) for c in compiles] if len(compiles) > page_parts.ROWS else []
            ),
            guards=[
                {"id": c["compile_id"], "block": c["block"], "guards": c["guards"]}
                for c in compiles[: page_parts.ROWS]
                if c.get("guards")
            ],
            timeline=page_parts.timeline(compiles),
            by_cause=page_parts.by_cause(compiles),
            causes=causes,
            explained={c["key"] for c in causes},
            severities=[s for s, n in wording.severity_counts(data["findings"]).items() if n],
            findings=[_finding(finding, f"finding-{i}") for i, finding in enumerate(data["findings"], 1)],
            changes_first=advice.advice(data),
            forecast=forecast.shown(data),
            step_columns=forecast.STEP_COLUMNS,
            regimes=forecast.REGIMES,
            regime_map=_regime_map(data),
            payoff=_payoff(data.get("payoff")),
            undetermined=[str(note) for note in data["undetermined"]],
        )
    )


def _regime_map(data: Mapping[str, Any]) -> str:
    """The figure of the regime map as SVG for this page; empty where there is none."""
    found = data.get("forecast") or {}
    if not found.get("points"):
        return ""
    from cftdiag.report.plots import regime_svg

    return regime_svg(found)


def _payoff(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The tables of what compiling gains and takes, and their sentences."""
    if not found:
        return None
    tables: list[tuple[Sequence[str], list[list[str]]]] = []
    if scopes := payoff.scope_rows(found):
        tables.append((payoff.SCOPES, scopes))
    if shapes := payoff.shape_rows(found):
        tables.append((payoff.shape_columns(found), shapes))
    return {"title": payoff.title(found), "tables": tables, "sentences": payoff.sentences(found)}


def _compile(compile_: Mapping[str, Any], longest: float) -> dict[str, Any]:
    return {
        "cells": wording.compile_row(compile_),
        "page": Path(compile_["tlparse"]).as_uri() if compile_.get("tlparse") else None,
        "share": round(100 * (compile_.get("seconds") or 0) / longest) if longest else 0,
    }


def _causes(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What the findings' causes mean, as `cftdiag explain` tells it."""
    from cftdiag.diagnose import CAUSES

    met = dict.fromkeys(str(f.get("cause")) for f in findings)
    return [
        {"key": c.key, "title": c.title, "what": c.what, "why": c.why, "fix": c.fix}
        for c in (CAUSES[key] for key in met if key in CAUSES)
    ]


def _block(block: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One cell of the map of blocks."""
    [group] = wording.block_groups([block])
    if group.fullgraph is False or group.graphs == 0:
        state = "bad"
    elif group.trouble:
        state = "warn"
    else:
        state = "good"
    fqn = str(block.get("fqn"))
    return {
        "title": f"{fqn} ({group.cls}): {', '.join(group.facts())}",
        "label": fqn.rpartition(".")[2],
        "state": state,
        "finding": next(
            (
                f"finding-{i}"
                for i, finding in enumerate(findings, 1)
                if any(covers(str(pattern), fqn) for pattern in finding.get("blocks") or ())
            ),
            None,
        ),
    }


def _finding(finding: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    return {
        "anchor": anchor,
        "source": page_parts.source(finding.get("where")),
        "severity": str(finding.get("severity")),
        "kind": str(finding.get("kind")),
        "cause": str(finding.get("cause")),
        "accepted": accepted.how_accepted(finding),
        "reach": wording.reach(finding),
        "where": wording.where(finding),
        "guard": finding.get("guard"),
        "explanation": finding.get("explanation") or "",
        "evidence": [str(line) for line in finding.get("evidence") or ()],
        "remedies": [
            {
                "summary": str(r.get("summary")),
                "mark": advice.mark(r, str(finding.get("kind"))),
                "verified": r.get("verified"),
                "edit": advice.edit_of(r),
            }
            for r in finding.get("remedies") or ()
        ],
    }
