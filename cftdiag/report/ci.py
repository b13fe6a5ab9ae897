"""A check as other tools' logs read it: one line a finding, GitHub's annotations, GitLab's code quality. What a
baseline or a comment accepted is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cftdiag.compare.fingerprint import fingerprints
from cftdiag.escape import escaped
from cftdiag.findings import SEVERITIES
from cftdiag.report import places, wording

_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}
_GITLAB = {"error": "critical", "warning": "major", "info": "info"}


def concise(data: Mapping[str, Any]) -> str:
    """``file:line: severity cause: text``, the worst first, and the verdict; what has no file begins with the
    subject's name.
    """
    lines = []
    for _, finding in _new(data):
        file, line = places.place(finding, data)
        at = f"{file}:{line}" if file else str((data.get("subject") or {}).get("name") or "model")
        lines.append(f"{at}: {finding.get('severity')} {finding.get('cause')}: {places.text(finding, file)}")
    return "\n".join(escaped(line) for line in [*lines, wording.verdict_line(data)])


def github(data: Mapping[str, Any]) -> str:
    """Workflow commands: an annotation a finding, and one for a check without a conclusion. GitHub shows ten
    errors and ten warnings of a step.
    """
    lines = []
    for _, finding in _new(data):
        file, line = places.place(finding, data)
        at = {"file": file, "line": line} if file else {}
        title = f"{finding.get('kind')} {finding.get('cause')}"
        lines.append(
            _command(
                _GITHUB.get(str(finding.get("severity")), "notice"),
                at | {"title": title},
                places.text(finding, file),
            )
        )
    if data["verdict"] == "error":
        notes = "; ".join(map(str, data["undetermined"]))
        lines.append(_command("error", {"title": "no conclusion"}, notes or wording.verdict_line(data)))
    return "\n".join([*lines, escaped(wording.verdict_line(data))])


def _command(name: str, properties: Mapping[str, Any], message: str) -> str:
    """``::error file=a.py,line=3::text``, escaped as the runner reads it."""
    shown = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {shown}::{_data(message)}"


def _data(text: Any) -> str:
    for mark, written in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = str(text).replace(mark, written)
    return escaped(text)


def _property(text: Any) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(data: Mapping[str, Any]) -> str:
    """The JSON array of a code quality report: an issue a finding."""
    issues = []
    for print_, finding in _new(data):
        file, line = places.place(finding, data)
        issues.append(
            {
                "description": f"{finding.get('kind')} {finding.get('cause')}: {places.text(finding, file)}",
                "check_name": finding.get("cause"),
                "fingerprint": print_,
                "severity": _GITLAB.get(str(finding.get("severity")), "info"),
                "location": {
                    "path": file or str((data.get("subject") or {}).get("name") or "model"),
                    "lines": {"begin": line or 1},
                },
            }
        )
    return json.dumps(issues, indent=2)


FORMATS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "concise": concise,
    "github": github,
    "gitlab": gitlab,
}


def _new(data: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(fingerprint, finding) of what nobody has accepted, the worst first."""
    rows = zip(fingerprints(data["findings"]), data["findings"], strict=True)
    new = [(print_, f) for print_, f in rows if not f.get("accepted")]
    weight = {severity: i for i, severity in enumerate(SEVERITIES[::-1])}
    return sorted(new, key=lambda row: weight.get(str(row[1].get("severity")), len(weight)))
