"""The self-test passes on this torch, and fails when a hook is gone."""

from __future__ import annotations

import sys

import pytest

from cftdiag import self_test
from cftdiag.torch_private import table


def test_everything_works_here() -> None:
    examined = self_test.run_selftest()
    assert [check for check in examined.checks if not check.ok] == []
    assert {check.name for check in examined.checks} == set(self_test._TESTS)
    assert [row for row in examined.names if row.broken] == []
    assert {row.point for row in examined.names} == {name.point for name in table.names()}


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
    [check] = self_test.run_selftest().checks
    assert not check.ok
