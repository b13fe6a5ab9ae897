"""Checks as tests, live: a pull request that adds a break or a recompile fails."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

MODEL = """
import torch


class Block(torch.nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)
        self.branch = branch

    def forward(self, x):
        y = self.fc(x)
        if self.branch and y.sum() > 0:
            y = y + 1
        return y


class Model(torch.nn.Module):
    def __init__(self, branch=False):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(branch) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def batches(*lengths):
    return [{"x": torch.randn(2, n, 8, requires_grad=True)} for n in lengths]


def build():
    return Model(), batches(5, 5)


def build_broken():
    return Model(branch=True), batches(5)


def build_two_lengths():
    return Model(), batches(5, 9)
"""

TESTS = """
from pathlib import Path

import pytest

MODEL = str(Path(__file__).with_name("model.py"))


@pytest.mark.cftdiag(fullgraph=True, max_recompiles=0, depth="trace")
def test_whole():
    return f"{MODEL}:build"


@pytest.mark.cftdiag(depth="trace")
def test_broken():
    return f"{MODEL}:build_broken"


@pytest.mark.cftdiag(max_recompiles=0, depth="trace")
def test_two_lengths(cftdiag_check):
    report = cftdiag_check(f"{MODEL}:build_two_lengths", max_recompiles=1)
    assert [c["cause"] for c in report.compiles] == [None, "seq_len"]
    cftdiag_check(f"{MODEL}:build_two_lengths")


@pytest.mark.cftdiag(fullgraph=True, coverage=1.0, depth="trace")
def test_live():
    import model

    return model.build()
"""


def test_a_break_and_a_recompile_fail_their_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(model=MODEL, test_compile=TESTS)
    result = pytester.runpytest_inprocess("-p", "cftdiag.pytest_plugin", "-rA")
    text = result.stdout.str()
    result.assert_outcomes(passed=2, failed=2)
    assert "cftdiag: findings at or above error: graph_break data_dependent_branch" in text
    assert "if self.branch and y.sum() > 0:" in text
    assert "cftdiag: 1 recompiles, at most 0 expected" in text
    assert "Dimension 1 of `x` is the sequence length: compiled for 5, called with 9." in text
