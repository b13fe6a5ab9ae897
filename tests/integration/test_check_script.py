"""``cftdiag check -- COMMAND`` with commands that do not train, or not as one hopes: one line, the right exit code,
nothing left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAINS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x).relu()
model = Model()
assert torch._dynamo.config.recompile_limit == LIMIT
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def check(folder: Path, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cftdiag", "check", "--no-verify", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def left(folder: Path) -> list[str]:
    """Scratch folders, and processes that carry one in their environment."""
    found = [p.name for p in folder.iterdir() if p.name.startswith("cftdiag-")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() + b"/cftdiag-rehearsal" in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["no-such-command", "train.py"], 2, "no command no-such-command here"),
        (["echo", "hello"], 2, "started no Python; give the command that trains"),
        ([sys.executable, "-c", "pass"], 2, "without importing torch; give the command that trains"),
        ([sys.executable, "-c", "import sys; print('no data'); sys.exit(7)"], 2, "exit code 7 before its first step, last saying: no data"),
        ([sys.executable, "-c", "input()"], 2, "EOFError"),
        ([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import torch"], 3, "has no torch"),
        ([sys.executable, "missing.py"], 2, "exit code 2 before its first step"),
        ([sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256))); raise SyntaxError('x')"], 2, "SyntaxError: x"),
        ([sys.executable, "-I", "-c", "pass"], 2, "-I hides the rehearsal"),
    ],
)  # fmt: skip
def test_command_that_does_not_train_is_one_line(
    tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    done = check(tmp_path, "--", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and says in line
    assert left(tmp_path) == []


def test_script_that_leaves_a_process_and_runs_on_is_ended(tmp_path: Path) -> None:
    program = "import subprocess, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)"
    done = check(tmp_path, "--timeout", "5", "--", sys.executable, "-c", program)
    assert done.returncode == 3
    assert "no optimizer step ended within 5 s" in done.stderr
    assert left(tmp_path) == []


def test_steps_end_a_script_that_executes_itself_again_and_forks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys
            if "again" not in sys.argv:
                os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            print(bytes(range(128, 256)))
            """
        )
        + TRAINS.replace("STEPS", "10**6").replace("LIMIT", "3")
    )
    limit = ("--set", "torch._dynamo.config.recompile_limit=3")
    done = check(tmp_path, "--steps", "4", *limit, "--", sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert "4 steps rehearsed, the script ended after 4 steps" in done.stdout
    assert "1 compile" in done.stdout
    assert left(tmp_path) == []
