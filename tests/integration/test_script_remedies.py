"""Remedies applied to a real script from outside, and failures told apart, each by rehearsing it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cftdiag.plan import load_plan

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cftdiag", "check", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
    )


@pytest.mark.everything(
    "seven rehearsals; in make test each change reaches its library, and a proof is judged"
)
def test_remedies_reach_a_script_and_are_proved_together(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    more = ("--json", str(path), "--plan", "plan.json", "--plots", "plots", "--verify-budget", "900")
    done = check(tmp_path, *more, "--", sys.executable, str(SCRIPTS / "uneven_batches.py"))
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(path.read_text())
    verified = {
        (f["cause"], next(iter(r["change"]))): r["verified"]
        for f in data["findings"]
        for r in f["remedies"]
        if r["change"]
    }
    assert verified["seq_len", "dynamic"] and verified["seq_len", "pad_to_multiple_of"]
    assert verified["batch_dim", "drop_last"] and verified["requires_grad", "input_requires_grad"]
    assert verified["batch_dim", "mark_dynamic"] is None
    # together they leave one graph
    last = data["change_first"][-1]["after"]
    assert (last["findings"], last["compiles"]) == (0, 1)
    assert len(load_plan(tmp_path / "plan.json").warm) == 3
    assert list((tmp_path / "plots").iterdir())


CRASH = """
import sys, torch
model = torch.nn.Linear(4, 4)
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    out = model(torch.ones(2, 4))
    out.sum().backward()
    if "own" in sys.argv:
        {}["loss"]
    assert abs(out.softmax(-1).sum().item() - 2) < 1e-3
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        pytest.param(
            "own", 2, "KeyError: 'loss' at crash.py:10; it fails with plain arithmetic and without torch.compile too",
            marks=pytest.mark.everything("11 s; the harder of the two stays"),
        ),
        ("made-up", 3, "it is the rehearsal that breaks it"),
    ],
)  # fmt: skip
def test_failure_is_told_whose_it_is(tmp_path: Path, word: str, code: int, says: str) -> None:
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    done = check(tmp_path, "--", sys.executable, str(script), word)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in " ".join((done.stdout + done.stderr).split())
