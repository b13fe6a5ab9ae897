"""Every case of the corpus, through ``cftdiag.check``: the expected cause, its block, its line or guard, and
nothing else that matters.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.cases.runner import load

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/cases").glob("[0-9]*.py")) + sorted(
    (ROOT / "tests/cases/extra").glob("[0-9]*.py")
)


@cache
def reports() -> dict[str, dict]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cases.runner", *map(str, CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(CASES), ran.stderr[-3000:]
    return {line["case"]: line for line in lines}


def names(pattern: str) -> str:
    """``layers.1..8`` of the corpus means any of those blocks."""
    return re.sub(r"\d+\.\.\d+", "*", pattern)


def same_block(expected: str, found: str) -> bool:
    return fnmatch.fnmatchcase(found, names(expected)) or fnmatch.fnmatchcase(
        expected.replace("*", "0"), found
    )


@pytest.mark.timeout(1800)  # the first test runs all cases
@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path):
    line = reports()[path.stem]
    assert "report" in line, line.get("error")
    expect = load(path).EXPECT
    findings = [f for f in line["report"]["findings"] if f["severity"] != "info"]
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
        assert any(same_block(expect["block"], b) for b in finding["blocks"]), finding["blocks"]
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
