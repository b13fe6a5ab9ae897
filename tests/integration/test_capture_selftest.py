"""The self-test passes on this torch, and fails when a hook is gone."""

from __future__ import annotations

import sys

import pytest

from cftdiag.capture import probes, self_test


def test_everything_works_here() -> None:
    checks = self_test.run_selftest()
    assert [check for check in checks if not check.ok] == []
    names = {check.name for check in checks}
    assert {
        "records a graph break",
        "records a recompile",
        "records a limit hit",
        "leaves torch as found",
        "structured trace",
    } <= names


def test_a_missing_hook_says_what_is_lost() -> None:
    check = probes._probe(
        "cached entries", "guards cannot be probed", probes._has("torch._dynamo.eval_frame:no_such_thing")
    )
    assert (check.ok, check.detail) == (False, "missing: guards cannot be probed")


def test_a_recorder_that_sees_nothing_fails_the_self_test(
    monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    from cftdiag.capture.recorder import Recorder

    monkeypatch.setattr(Recorder, "_feed", lambda *args: None)
    failed = {check.name for check in self_test.provoke() if not check.ok}
    assert {
        "records a compile",
        "records a graph break",
        "records a recompile",
        "records a limit hit",
    } <= failed


def test_a_child_that_dies_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    [check] = self_test.run_selftest()
    assert not check.ok
