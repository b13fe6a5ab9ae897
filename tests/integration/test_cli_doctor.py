"""The doctor examines this very environment, in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cftdiag import doctor


def test_the_check_works_in_the_test_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cftdiag", "doctor", "--json"], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads(done.stdout)
    assert state["schema"] == "cftdiag.doctor/1"
    assert (state["works"], state["problems"]) == (True, [])
    assert state["versions"]["torch"]
    assert state["self_test"]
    assert all(test["ok"] for test in state["self_test"])


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cftdiag.cli.main import run

    tests = [{"name": "recompile", "ok": False, "detail": "no reason was given"}]
    monkeypatch.setattr(doctor, "_self_test", lambda problems: tests)
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "FAILED  recompile  no reason was given" in out
    assert "- self-test recompile: no reason was given" in out
    assert out.rstrip().endswith("the check cannot work here")


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ({"torch": None, "transformers": "5.0"}, "torch is not installed"),
        ({"torch": "2.10.1+cu128", "transformers": "5.0"}, "too old"),
        ({"torch": "2.13.0", "transformers": None}, "transformers is not installed"),
    ],
)
def test_what_is_missing_is_a_problem(versions: dict[str, str | None], problem: str) -> None:
    [found] = doctor._version_problems(versions)
    assert problem in found


@pytest.mark.parametrize("version", ["2.11.0", "2.14.1+cu130", "3.0.0a0+git123"])
def test_new_enough_torch_is_no_problem(version: str) -> None:
    assert doctor._version_problems({"torch": version, "transformers": "5.0"}) == []


def test_a_self_test_that_raises_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    selftest = pytest.importorskip("cftdiag.capture.self_test")

    def broken() -> None:
        raise RuntimeError("no hook")

    monkeypatch.setattr(selftest, "run_selftest", broken)
    state = doctor.examine()
    assert state["works"] is False
    assert any("RuntimeError: no hook" in problem for problem in state["problems"])
