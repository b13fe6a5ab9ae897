"""The explain verb, over the registry of causes."""

from __future__ import annotations

import json

import pytest

from cftdiag.cli.main import run
from cftdiag.diagnose import CAUSES


def test_the_list_names_every_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(CAUSES) <= listed


@pytest.mark.parametrize("key", sorted(CAUSES))
def test_a_page_says_what_why_and_fix(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", key]) == 0
    out = capsys.readouterr().out
    assert out.startswith(key)
    assert [t for t in ("What it is", "Why it costs", "Fix") if t not in out] == []


def test_json_of_all_and_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--json"]) == 0
    assert {c["key"] for c in json.loads(capsys.readouterr().out)} == set(CAUSES)
    assert run(["explain", "seq_len", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["key"] == "seq_len"
    assert one["fix"]


def test_an_unknown_cause_gets_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "seqlen"]) == 2
    err = capsys.readouterr().err
    assert "seq_len" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("key", sorted(key for key, cause in CAUSES.items() if cause.example))
def test_an_example_alone_is_a_file_to_check(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", key, "--example"]) == 0
    out = capsys.readouterr().out
    assert out == CAUSES[key].example
    compile(out, "file.py", "exec")


def test_an_example_that_there_is_not_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    without = next(key for key, cause in CAUSES.items() if not cause.example)
    for args in (["explain", "--example"], ["explain", without, "--example"]):
        assert run(args) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
