"""What a case of the corpus says is to be found, held against a report. Torch-free."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
CASES = sorted(FOLDER.glob("[0-9]*.py")) + sorted((FOLDER / "extra").glob("[0-9]*.py"))


def expected(case: Path) -> dict[str, Any]:
    """``EXPECT`` of a case, read without running the case."""
    for node in ast.parse(case.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["EXPECT"]:
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{case} has no EXPECT")


def hold(report: Mapping[str, Any], expect: Mapping[str, Any]) -> None:
    """Assert the expected cause, its block, its line or guard, and nothing else that matters. ``since`` of an expectation
    is what holds from a release of torch on.
    """
    release = _numbers(str(report.get("environment", {}).get("torch", "")))
    for since, other in expect.get("since", {}).items():
        if release >= _numbers(since):
            expect = other
    findings = [f for f in report["findings"] if f["severity"] != "info"]
    found = {(f["kind"], f["cause"]) for f in findings}
    if expect["kind"] == "none":
        assert not found
        return
    wanted = (expect["kind"], expect["cause"])
    allowed = {wanted, *map(tuple, expect.get("also", ()))}
    if expect.get("limit_hit"):
        allowed.add(("limit_hit", expect["cause"]))
    assert wanted in found and found <= allowed
    finding = next(f for f in findings if (f["kind"], f["cause"]) == wanted)
    if not expect["block"].startswith(("optimizer", "-")):
        assert any(_same_block(expect["block"], b) for b in finding["blocks"]), finding["blocks"]
    if "line" in expect:
        # the corpus abbreviates arguments: `log.warning(...)`
        told = [finding["where"]["code"] or "", *finding["evidence"]]
        core = expect["line"] if "if " in expect["line"] else expect["line"].split("(")[0]
        assert any(core in text for text in told), told
    elif expect["kind"] == "recompile":
        # what the corpus writes beside a guard in brackets or after a slash is a remark
        core = re.split(r" / | \(", expect["guard"])[0]
        assert core in " ".join([finding["guard"] or "", *finding["evidence"]])
    if expect.get("limit_hit") is True and expect["kind"] == "recompile":
        assert ("limit_hit", expect["cause"]) in found
    if expect.get("limit_hit") is False:
        assert not any(kind == "limit_hit" for kind, _ in found)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release.partition("+")[0])[:2]))


def _same_block(expect: str, found: str) -> bool:
    """``layers.1..8`` of the corpus means any of those blocks."""
    pattern = re.sub(r"\d+\.\.\d+", "*", expect)
    return fnmatch.fnmatchcase(found, pattern) or fnmatch.fnmatchcase(expect.replace("*", "0"), found)
