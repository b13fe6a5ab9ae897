"""A pull request that adds a break or a recompile is stopped, live: by its tests, by the baseline, and by the
documented action's own command lines.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.warm import Command

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


@pytest.mark.cftdiag(fullgraph=True, coverage=1.0, lengths=[5, 5], depth="trace")
def test_live(cftdiag_lengths):
    import model

    return model.Model(), model.batches(*cftdiag_lengths)
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


ROOT = Path(__file__).resolve().parents[2]


def action_commands(model: str) -> list[list[str]]:
    """What the steps of the composite action of docs/gates.md run, with its inputs filled in."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "gates.md").read_text(), flags=re.S)
    (action,) = [d for d in map(yaml.safe_load, blocks) if isinstance(d, dict) and "runs" in d]
    given = {"model": model, **{k: v["default"] for k, v in action["inputs"].items() if "default" in v}}
    lines = [step["run"] for step in action["runs"]["steps"]]
    filled = [re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: given[m[1]], line) for line in lines]
    return [shlex.split(line.replace("$GITHUB_STEP_SUMMARY", "summary.md")) for line in filled]


def test_the_action_passes_what_the_baseline_knows_and_stops_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cftdiag_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("model.py")
    clean = MODEL.replace(
        "    def forward(self, x):\n        y =",
        "    def forward(self, x):\n        x = x + 1\n        y =",
        1,
    )
    source.write_text(clean)
    check, show = action_commands("model.py:build")
    assert check[0] == show[0] == "cftdiag"
    written = cftdiag_command(
        "check", "--model", "model.py:build", "--no-verify", "--write-baseline", "cftdiag-baseline.json"
    )
    assert written.returncode == 0, written.stderr
    assert cftdiag_command(*check[1:]).returncode == 0

    # a line moves and a branch on a value comes
    source.write_text(
        "# moved\n"
        + clean.replace("return Model(), batches(5, 5)", "return Model(branch=True), batches(5, 5)")
    )
    stopped = cftdiag_command(*check[1:])
    line = 1 + source.read_text().splitlines().index("        if self.branch and y.sum() > 0:")
    assert stopped.returncode == 1
    assert f"::error file=model.py,line={line},title=graph_break data_dependent_branch::" in stopped.stdout
    shown = cftdiag_command(*show[1:])
    assert shown.returncode == 0
    (result,) = json.loads(Path("check.sarif").read_text())["runs"][0]["results"]
    where = result["locations"][0]["physicalLocation"]
    assert (where["artifactLocation"]["uri"], where["region"]["startLine"]) == ("model.py", line)
    assert "data_dependent_branch" in Path("summary.md").read_text().replace("\\_", "_")

    # another length comes, which is one more compile
    source.write_text(clean.replace("return Model(), batches(5, 5)", "return Model(), batches(5, 9)"))
    stopped = cftdiag_command(*check[1:])
    assert stopped.returncode == 1 and "title=recompile seq_len::" in stopped.stdout

    # what was accepted once passes from then on
    assert cftdiag_command(*check[1:], "--write-baseline", "cftdiag-baseline.json").returncode == 0
    assert cftdiag_command(*check[1:]).returncode == 0
