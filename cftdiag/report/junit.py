"""A check as JUnit XML: one test case a block, and one for the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from cftdiag.escape import escaped
from cftdiag.findings import covers
from cftdiag.report import advice, wording
from cftdiag.report.accepted import how_accepted


def render(data: Mapping[str, Any]) -> str:
    """A block with an error fails with its findings as text; a warning, and what was accepted, stays in the case's
    output. Each finding is told in full once, at the first block that it hits.
    """
    name = str(data["subject"].get("name") or "model")
    told: dict[int, str] = {}
    cases = [_block_case(name, block, data["findings"], told) for block in data["blocks"]]
    cases.append(_verdict_case(name, data, told))
    failures = sum(case.find("failure") is not None for case in cases)
    errors = sum(case.find("error") is not None for case in cases)
    totals = {
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": str(errors),
        "time": f"{data['timing'].get('wall_s') or 0:.3f}",
    }
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(f"cftdiag check {name}"), **totals})
    suite.extend(cases)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _block_case(
    subject: str, block: Mapping[str, Any], findings: list[Mapping[str, Any]], told: dict[int, str]
) -> ElementTree.Element:
    fqn = str(block.get("fqn"))
    case = ElementTree.Element(
        "testcase", {"classname": _clean(f"{subject}.{block.get('class')}"), "name": _clean(fqn), "time": "0"}
    )
    errors: list[tuple[Mapping[str, Any], str]] = []
    others: list[tuple[Mapping[str, Any], str]] = []
    for i, finding in enumerate(findings):
        if not any(covers(str(pattern), fqn) for pattern in finding.get("blocks") or ()):
            continue
        text = (
            _text(finding) if told.setdefault(i, fqn) == fqn else f"{_short([finding])}: as told at {told[i]}"
        )
        (errors if _fails(finding) else others).append((finding, text))
    if errors:
        _child(
            case,
            "failure",
            "\n\n".join(text for _, text in errors),
            message=_short([finding for finding, _ in errors]),
            type=str(errors[0][0].get("kind")),
        )
    if others:
        _child(case, "system-out", "\n\n".join(text for _, text in others))
    return case


def _verdict_case(subject: str, data: Mapping[str, Any], told: Mapping[int, str]) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {"classname": _clean(subject), "name": "verdict", "time": f"{data['timing'].get('wall_s') or 0:.3f}"},
    )
    line = wording.verdict_line(data)
    if data["verdict"] == "error":
        _child(case, "error", "\n".join(map(str, data["undetermined"])), message=line, type="no_conclusion")
    elif any(map(_fails, data["findings"])):
        # Findings that name no block have no other case to fail.
        _child(
            case,
            "failure",
            "\n\n".join(
                f"{_short([f])}: as told at {told[i]}" if i in told else _text(f)
                for i, f in enumerate(data["findings"])
                if _fails(f)
            ),
            message=line,
            type="not_viable",
        )
    else:
        _child(case, "system-out", line)
    return case


def _fails(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") == "error" and not finding.get("accepted")


def _short(findings: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{f.get('kind')} {f.get('cause')}" for f in findings)


def _text(finding: Mapping[str, Any]) -> str:
    lines = [
        f"{finding.get('severity')} {finding.get('kind')} {finding.get('cause')} {wording.reach(finding)}".rstrip()
    ]
    place = wording.where(finding)
    if finding.get("accepted"):
        lines[0] += f" ({how_accepted(finding)})"
    if place:
        lines.append(f"where: {place}")
    if finding.get("explanation"):
        lines.append(f"why: {finding['explanation']}")
    if finding.get("guard"):
        lines.append(f"guard: {finding['guard']}")
    lines += [
        f"fix: {r.get('summary')} ({advice.mark(r, str(finding.get('kind')))})"
        for r in finding.get("remedies") or []
    ]
    return "\n".join(lines)


def _child(parent: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(
        parent, tag, {key: _clean(value) for key, value in attributes.items()}
    ).text = _clean(text)


def _clean(text: str) -> str:
    """What XML 1.0 cannot hold, shown; lines stay lines."""
    return "\n".join(map(escaped, text.split("\n")))
