"""The doctor examines this very environment, in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cftdiag import doctor
from cftdiag.self_test import Check, Examined
from cftdiag.torch_private import table
from cftdiag.torch_private.names import Name, Part


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
    assert state["depth"] == "codegen"
    missing = [row for row in state["private_names"] if not row["ok"]]
    assert state["private_names"] and [row for row in missing if row["needed"]] == []


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cftdiag.cli.main import run

    failed = Check("recompile", "guards", False, "no reason was given")
    gone = table.Row(
        point="torch._dynamo:hook", part="monitor", ok=False, needed=True, detail="no hook: no alarm"
    )
    monkeypatch.setattr(doctor, "_self_test", lambda problems: Examined((gone,), (failed,)))
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "FAILED  recompile  no reason was given" in out
    assert "- self-test recompile: no reason was given" in out
    assert "- monitor: no hook: no alarm" in out
    assert "0 of 1 as expected" in out
    assert out.rstrip().endswith("the check cannot work here; depth codegen is still available")


@pytest.mark.parametrize(
    ("part", "works", "depth"),
    [
        ("record", False, None),
        ("trace", False, None),
        ("joint", False, "trace"),
        ("codegen for the CPU", True, "joint"),
        ("monitor", True, "codegen"),
    ],
)
def test_a_lost_name_costs_what_it_serves(
    part: Part, works: bool, depth: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table.probe([Name("torch._dynamo.callback:no_such_thing", part, "that is gone")])
    monkeypatch.setattr(doctor, "_self_test", lambda problems: Examined(tuple(rows), ()))
    state = doctor.examine()
    assert (state["works"], state["depth"]) == (works, depth)
    told = state["degraded"] if works else state["problems"]
    assert any(note.startswith(f"{part}: ") and note.endswith(": that is gone") for note in told)


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
    selftest = pytest.importorskip("cftdiag.self_test")

    def broken() -> None:
        raise RuntimeError("no hook")

    monkeypatch.setattr(selftest, "run_selftest", broken)
    state = doctor.examine()
    assert state["works"] is False
    assert any("RuntimeError: no hook" in problem for problem in state["problems"])
