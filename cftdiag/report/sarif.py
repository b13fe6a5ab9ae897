"""A check as SARIF 2.1.0, which code scanning shows at the line in the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag import __version__
from cftdiag.report import advice, wording

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
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
        "results": [_result(f, rules.index(_rule_id(f))) for f in findings],
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
    first = next(f for f in findings if _rule_id(f) == rule)
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in str(first.get("cause")).replace(".", "_").split("_")),
        "shortDescription": {"text": f"{first.get('kind')} {first.get('cause')}"},
        "help": {"text": f"Run: cftdiag explain {first.get('cause')}"},
        "defaultConfiguration": {"level": _LEVELS.get(str(first.get("severity")), "note")},
    }


def _result(finding: Mapping[str, Any], index: int) -> dict[str, Any]:
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
        # Line numbers move; cause, file and source line stay.
        "partialFingerprints": {
            "cftdiag/v1": "|".join(
                [_rule_id(finding), Path(str(place.get("file"))).name, str(place.get("code"))]
            )
        },
        "properties": {
            "blocks": list(finding.get("blocks") or ()),
            "guard": finding.get("guard"),
            "count": finding.get("count"),
        },
    }
    if place.get("file"):
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(str(place["file"]))}}
        if isinstance(place.get("line"), int) and place["line"] > 0:
            physical["region"] = {"startLine": place["line"]}
            if place.get("code"):
                physical["region"]["snippet"] = {"text": place["code"]}
        result["locations"] = [{"physicalLocation": physical}]
    return result


def _uri(file: str) -> str:
    """Relative to the working directory where the file is inside it: what code scanning maps to the
    repository.
    """
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_uri()
