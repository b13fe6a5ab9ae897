"""The tutorial, done as it is written: its script, its commands in their order, and what it says of them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """The indented commands of the page, with this Python in place of theirs."""
    lines = re.findall(r"^    (cftdiag .+)$", PAGE, re.M)
    return [
        [
            sys.executable,
            "-m",
            "cftdiag",
            *(sys.executable if w == "python" else w for w in shlex.split(line)[1:]),
        ]
        for line in lines
    ]


@pytest.mark.everything(
    "rehearses, proves and runs a script; each verb has its own tests, commands are parsed in make test"
)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "train.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    said = []
    for command in commands():
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said.append(done)
    check, diff, apply, run, report, page = said
    told = PAGE[PAGE.index("Change first\n") : PAGE.index("```\n\nRead it")]
    assert told.strip() in check.stdout
    assert '+    layer.compile(backend="aot_eager", dynamic=True)' in diff.stdout
    assert "changed " in apply.stderr
    assert "dynamic=True" in (tmp_path / "train.py").read_text()
    assert "1 compile" in run.stderr
    last = re.findall(r"The last line says what came of it: `(.*?)`", PAGE)[0]
    assert report.stdout.splitlines()[-1].startswith(last.partition(" over ")[0])
    assert (tmp_path / "run.html").is_file() and page.stdout.startswith("viable")
