"""The page about releases of torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from check_samples import VIABLE

from cftdiag import upgrade
from cftdiag.errors import EnvironmentUnfit
from tests import compat
from tests.cases.expect import CASES, expected
from tests.compat import __main__ as program
from tests.compat.page import page


def _row(torch: str, **values: Any) -> dict[str, Any]:
    verdict = {"verdict": "viable", "reason": "", "compiles": 3, "breaks": 0}
    return {
        "torch": torch, "transformers": "5.0", "triton": None, "depth": "joint", "names": [70, 71], "degraded": [], "corpus": [64, 65],
        "models": {"qwen3": verdict, "gpt2": {**verdict, "reason": "verdict error"}}, "lowered": verdict, "problems": [], "left": [], **values,
    }  # fmt: skip


def test_releases_are_in_the_order_of_their_numbers_and_say_what_does_not_hold() -> None:
    text = page(
        [
            _row("2.14.1", degraded=["inductor: no\n name"], problems=["case: 2 != 1"], left=["x"]),
            _row("2.9.0"),
        ]
    )
    old, new = (line for line in text.splitlines() if line.startswith(("| 2.9.0 ", "| 2.14.1 ")))
    assert old == "| 2.9.0 | 5.0 | - | joint | 70 of 71 | 64 of 65 | 1 of 2 | viable, 3 compiles |"
    assert new.startswith("| 2.14.1 |")
    assert "| gpt2 | viable: 3 compiles, 0 breaks | viable: 3 compiles, 0 breaks |" in text.splitlines()
    assert text.endswith("## torch 2.14.1\n\n- not run: x\n- degraded: inductor: no name\n- case: 2 != 1\n")
    assert "## torch 2.9.0" not in text


def test_a_check_that_cannot_run_there_is_a_problem_of_that_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise EnvironmentUnfit("too old")

    monkeypatch.setattr(upgrade, "check_in", refused)
    row = program._verdict(upgrade.present(), "--model", "x")
    assert (row["verdict"], row["reason"]) == ("error", "too old")


def test_a_check_is_told_by_its_verdict_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"verdict": "viable", "reason": "", "compiles": 1, "breaks": 0}
    monkeypatch.setattr(upgrade, "check_in", lambda *_: VIABLE)
    assert program._verdict(upgrade.present(), "--model", "x") == told
    monkeypatch.setattr(upgrade, "check_in", lambda *_: {**VIABLE, "verdict": "not_viable"})
    assert program._verdict(upgrade.present(), "--model", "x")["reason"] == "verdict not_viable"


def test_a_case_is_held_against_what_it_expects() -> None:
    case = next(case for case in CASES if expected(case))
    assert program._difference(None, case) == "did not end"
    assert program._difference({"error": "Traceback\nKeyError: 'x'"}, case) == "KeyError: 'x'"
    assert program._difference({"report": {"verdict": "viable", "findings": [], "blocks": []}}, case)
    assert Path(compat.__file__).parent.name == "compat"


def test_a_call_goes_on_where_the_one_before_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step a time, none twice; the page has the release when all of it is done."""
    doctor = {
        "versions": {"torch": "2.14.1+cpu", "transformers": "5.0", "triton": None}, "depth": "joint",
        "private_names": [{"ok": True}, {"ok": False}], "degraded": [], "problems": [],
    }  # fmt: skip
    taken: list[str] = []

    def ran(_: Any, *arguments: str) -> Any:
        if "doctor" in arguments:
            return subprocess.CompletedProcess(arguments, 0, json.dumps(doctor))
        stems = [Path(path).stem for path in arguments[2:]]
        taken.extend(stems)
        lines = [json.dumps({"case": stem, "error": "Boom: no"}) for stem in stems]
        return subprocess.CompletedProcess(arguments, 0, "\n".join(lines))

    def checked(_: Any, arguments: Any) -> Any:
        taken.append(arguments[1])
        return VIABLE

    monkeypatch.setattr(program, "_run", ran)
    monkeypatch.setattr(upgrade, "versions", lambda *_: {"torch": "2.14.1+cpu"})
    monkeypatch.setattr(upgrade, "check_in", checked)
    monkeypatch.setattr(program, "AT_ONCE", 1)
    steps = len(program.ARCHITECTURES) + 1 + 2
    state, cases = tmp_path / "2.14.1.json", CASES[:2]
    for step in range(steps):
        assert program.row(json.loads(state.read_text()))["left"] if step else not state.exists()
        assert program.examine(upgrade.present(), cases, tmp_path, lambda text: None, most=1) == 0
    assert len(taken) == len(set(taken)) == steps
    found = program.row(json.loads(state.read_text()))
    assert (found["names"], found["corpus"], found["left"]) == ([1, 2], [0, 2], [])
    assert found["problems"] == [f"{case.stem}: Boom: no" for case in cases]
    assert program.examine(upgrade.present(), cases, tmp_path, lambda text: None, most=1) == 1
    program.examine(upgrade.present(), cases, tmp_path, lambda text: None, most=1, anew=True)
    left = program.row(json.loads(state.read_text()))["left"]
    assert left[0] == "2 cases of the corpus" and left[-1] == "the lowering for an H200" and len(left) == 9
