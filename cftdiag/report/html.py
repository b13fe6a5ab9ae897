"""A check as one self-contained HTML page: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag import __version__
from cftdiag.escape import escaped
from cftdiag.report import accepted, advice, forecast, wording


def render(data: Mapping[str, Any]) -> str:
    """The whole page; every text of the check is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cftdiag.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,
    )
    name, facts = wording.headline(data)
    compiles = data["compiles"]
    longest = max((c.get("seconds") or 0 for c in compiles), default=0)
    return environment.get_template("check.html.j2").render(
        version=__version__,
        name=name,
        facts=facts,
        notes=[*wording.conditions(data), *wording.passes_not_run(data)],
        verdict=data["verdict"],
        verdict_words=wording.verdict_words(data),
        verdict_facts=wording.verdict_facts(data),
        cost=wording.cost(data),
        groups=wording.block_groups(data["blocks"]),
        blocks=[_block(block) for block in data["blocks"]],
        compiles=[
            {
                **dict(zip(wording.COMPILE_COLUMNS, wording.compile_row(c), strict=True)),
                "page": Path(c["tlparse"]).as_uri() if c.get("tlparse") else None,
                "share": round(100 * (c.get("seconds") or 0) / longest) if longest else 0,
            }
            for c in compiles
        ],
        findings=[_finding(finding) for finding in data["findings"]],
        changes_first=advice.advice(data),
        forecast=forecast.shown(data),
        step_columns=forecast.STEP_COLUMNS,
        regimes=forecast.REGIMES,
        regime_map=_regime_map(data),
        undetermined=[str(note) for note in data["undetermined"]],
    )


def _regime_map(data: Mapping[str, Any]) -> str:
    """The figure of the regime map as SVG for this page; empty where there is none."""
    found = data.get("forecast") or {}
    if not found.get("points"):
        return ""
    from cftdiag.report.plots import regime_svg

    return regime_svg(found)


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    """One cell of the map of blocks."""
    if block.get("fullgraph") is False or block.get("graphs") == 0:
        state = "bad"
    elif block.get("graph_breaks") or block.get("recompiles"):
        state = "warn"
    else:
        state = "good"
    [group] = wording.block_groups([block])
    fqn = str(block.get("fqn"))
    return {
        "title": f"{fqn} ({group.cls}): {', '.join(group.facts())}",
        "label": fqn.rpartition(".")[2],
        "state": state,
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {
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
                "unsafe": bool(r.get("unsafe")),
            }
            for r in finding.get("remedies") or ()
        ],
    }
