"""Packages of kernels for GPUs, installed without one: their Python runs, their kernels do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")


@pytest.mark.everything("half a minute each, where the package is installed; test_rehearse_inside.py stays")
@pytest.mark.parametrize(
    ("package", "command", "compiles"),
    [
        ("bitsandbytes", [sys.executable, "bnb.py"], 4),
        ("deepspeed", [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2", "zero.py"], 4),
    ],
)
def test_script_with_kernels_is_rehearsed_to_its_end(
    tmp_path: Path, package: str, command: list[str], compiles: int
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    saved = tmp_path / "check.json"
    command = [str(SCRIPTS / word) if word.endswith(".py") else word for word in command]
    done = subprocess.run(
        [sys.executable, "-m", "cftdiag", "check", "--no-verify", "--json", str(saved), "--", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(saved.read_text())
    assert (data["script"]["ended"], len(data["compiles"])) == ("ran to its end", compiles)
