"""``cftdiag check -- COMMAND`` against the same command run for real under ``cftdiag run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cftdiag.monitor import report

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
CFTDIAG = [sys.executable, "-m", "cftdiag"]


def cftdiag(folder: Path, *words: str, codes: Sequence[int] = (0, 1), **env: str) -> str:
    done = subprocess.run(
        [*CFTDIAG, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def rehearse(folder: Path, *command: str) -> dict[str, Any]:
    path = folder / "check.json"
    cftdiag(folder, "check", "--no-verify", "--json", str(path), "--", *command)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def real(folder: Path, *command: str) -> dict[str, Any]:
    """The script under the monitor, graphs run by AOTAutograd's eager backend."""
    cftdiag(folder, "run", "--run-dir", str(folder / "run"), "--", *command, BACKEND="aot_eager")
    return report(folder / "run")


def told(data: dict[str, Any]) -> dict[str, Any]:
    """What both must say alike: compiles and their steps, causes, breaks and their lines."""
    forward = [c for c in data["compiles"] if c.get("region") != "backward" and c.get("status", "ok") == "ok"]
    return {
        "compiles": sorted((c["step"], c["block"]) for c in forward),
        "findings": sorted(
            (f["kind"], f["cause"], f["where"]["line"], f["count"], tuple(f["steps"]))
            for f in data["findings"]
            if f["severity"] != "info"
        ),
    }


@pytest.mark.parametrize("script", ["gpt_loop.py", "broken_blocks.py"])
def test_rehearsal_says_what_the_real_run_says(tmp_path: Path, script: str) -> None:
    command = (sys.executable, str(SCRIPTS / script))
    rehearsed = rehearse(tmp_path, *command)
    assert os.listdir(tmp_path) == ["check.json"]
    ran = real(tmp_path, *command)
    assert told(rehearsed)["compiles"], "nothing was compiled"
    assert told(rehearsed) == told(ran)
    assert rehearsed["verdict"] == ran["verdict"]
