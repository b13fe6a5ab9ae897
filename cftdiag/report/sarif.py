"""A check as SARIF 2.1.0, which code scanning shows at the line in the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cftdiag import __version__
from cftdiag.compare.fingerprint import fingerprints
from cftdiag.diagnose import CAUSES
from cftdiag.report import advice, places, wording

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
#: What paths are relative to; a viewer knows where its own checkout is.
_ROOT = "%SRCROOT%"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(data: Mapping[str, Any]) -> str:
    """One run with a rule a cause and a result a finding."""
    findings = data["findings"]
    rules = list(dict.fromkeys(_rule_id(f) for f in findings))
    run = {
        "tool": {
            "driver": {
                "name": "cftdiag",
                "version": __version__,
                "rules": [_rule(rule, findings) for rule in rules],
            }
        },
        "results": [
            _result(f, rules.index(_rule_id(f)), print_, data)
            for f, print_ in zip(findings, fingerprints(findings), strict=True)
        ],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [{"executionSuccessful": data["verdict"] != "error"}],
        "properties": {
            "verdict": data["verdict"],
            "depth": data["depth"],
            "target": data.get("target"),
            "subject": data["subject"].get("name"),
        },
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule_id(finding: Mapping[str, Any]) -> str:
    return f"{finding.get('kind')}/{finding.get('cause')}"


def _rule(rule: str, findings: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The page of the cause, shortened to what a reader of an alert needs."""
    first = next(f for f in findings if _rule_id(f) == rule)
    key = str(first.get("cause"))
    described: dict[str, Any] = {
        "id": rule,
        "name": "".join(word.capitalize() for word in key.replace(".", "_").split("_")),
        "shortDescription": {"text": f"{first.get('kind')} {key}"},
        "help": {"text": f"Run: cftdiag explain {key}"},
        "defaultConfiguration": {"level": _LEVELS.get(str(first.get("severity")), "note")},
        "properties": {"tags": ["torch.compile", str(first.get("kind"))]},
    }
    cause = CAUSES.get(key)
    if cause is None:
        return described
    more = f"Run: cftdiag explain {key}"
    described["shortDescription"] = {"text": cause.title}
    described["fullDescription"] = {"text": cause.what}
    described["help"] = {
        "text": f"{cause.what}\n\n{cause.why}\n\nFix: {cause.fix}\n\n{more}",
        "markdown": f"{cause.what}\n\n{cause.why}\n\n**Fix**: {cause.fix}\n\n`cftdiag explain {key}`",
    }
    if cause.references:
        described["helpUri"] = cause.references[0]
    return described


def _result(finding: Mapping[str, Any], index: int, print_: str, data: Mapping[str, Any]) -> dict[str, Any]:
    message = [str(finding.get("explanation") or finding.get("cause"))]
    reach = wording.reach(finding)
    if reach:
        message.append(f"Met {reach}.")
    remedy = wording.best_remedy(finding)
    if remedy is not None:
        message.append(f"Fix: {remedy.get('summary')} ({advice.mark(remedy, str(finding.get('kind')))})")
    place = finding.get("where") or {}
    result: dict[str, Any] = {
        "ruleId": _rule_id(finding),
        "ruleIndex": index,
        "level": _LEVELS.get(str(finding.get("severity")), "note"),
        "message": {"text": " ".join(message)},
        "partialFingerprints": {"cftdiag/v2": print_},
        "properties": {
            "blocks": list(finding.get("blocks") or ()),
            "guard": finding.get("guard"),
            "count": finding.get("count"),
        },
    }
    locations = [] if not place.get("file") else [_location(place)]
    checked = places.checked_file(data)
    if locations and places.in_repository(str(place["file"])) is None and checked is not None:
        # code scanning shows nothing outside the repository: the checked file stands for a library's line
        result["relatedLocations"] = [{"id": 1, "message": {"text": "met here"}, **locations[0]}]
        locations = [_location({"file": checked, "line": 1}, relative=True)]
    if locations:
        result["locations"] = locations
    accepted = finding.get("accepted")
    if accepted:
        kind = "inSource" if accepted.get("by") == "comment" else "external"
        justification = {"justification": accepted["reason"]} if accepted.get("reason") else {}
        result["suppressions"] = [{"kind": kind, **justification}]
    return result


def _location(place: Mapping[str, Any], *, relative: bool = False) -> dict[str, Any]:
    file = str(place["file"])
    known = file if relative else places.in_repository(file)
    artifact = (
        {"uri": quote(known), "uriBaseId": _ROOT}
        if known is not None
        else {"uri": Path(file).as_uri() if Path(file).is_absolute() else quote(Path(file).as_posix())}
    )
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if isinstance(place.get("line"), int) and place["line"] > 0:
        physical["region"] = {"startLine": place["line"]}
        if place.get("code"):
            physical["region"]["snippet"] = {"text": place["code"]}
    return {"physicalLocation": physical}
