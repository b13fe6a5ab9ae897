"""A check as JUnit XML: one test case a block, and one for the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from cftdiag.escape import escaped
from cftdiag.findings import covers
from cftdiag.report import advice, wording


def render(data: Mapping[str, Any]) -> str:
    """A block with an error fails with its findings as text; a warning stays in the case's output."""
    name = str(data["subject"].get("name") or "model")
    cases = [_block_case(name, block, data["findings"]) for block in data["blocks"]]
    cases.append(_verdict_case(name, data))
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
    subject: str, block: Mapping[str, Any], findings: list[Mapping[str, Any]]
) -> ElementTree.Element:
    fqn = str(block.get("fqn"))
    case = ElementTree.Element(
        "testcase", {"classname": _clean(f"{subject}.{block.get('class')}"), "name": _clean(fqn), "time": "0"}
    )
    mine = [f for f in findings if any(covers(str(pattern), fqn) for pattern in f.get("blocks") or ())]
    errors = [f for f in mine if f.get("severity") == "error"]
    if errors:
        _child(
            case,
            "failure",
            "\n\n".join(map(_text, errors)),
            message=_short(errors),
            type=str(errors[0].get("kind")),
        )
    others = [f for f in mine if f.get("severity") != "error"]
    if others:
        _child(case, "system-out", "\n\n".join(map(_text, others)))
    return case


def _verdict_case(subject: str, data: Mapping[str, Any]) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {"classname": _clean(subject), "name": "verdict", "time": f"{data['timing'].get('wall_s') or 0:.3f}"},
    )
    line = wording.verdict_line(data)
    if data["verdict"] == "error":
        _child(case, "error", "\n".join(map(str, data["undetermined"])), message=line, type="no_conclusion")
    elif data["verdict"] == "not_viable":
        # Findings that name no block have no other case to fail.
        _child(
            case,
            "failure",
            "\n\n".join(_text(f) for f in data["findings"] if f.get("severity") == "error"),
            message=line,
            type="not_viable",
        )
    else:
        _child(case, "system-out", line)
    return case


def _short(findings: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{f.get('kind')} {f.get('cause')}" for f in findings)


def _text(finding: Mapping[str, Any]) -> str:
    lines = [
        f"{finding.get('severity')} {finding.get('kind')} {finding.get('cause')} {wording.reach(finding)}".rstrip()
    ]
    place = wording.where(finding)
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
