"""The command line around real checks of small models: verdict, exit code, one line for bad input, no child
left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.warm import Command

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        {line}
        return torch.relu(self.linear(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = x.requires_grad_()
        for layer in self.layers:
            x = layer(x)
        return x


def build():
    {build}
    return Model(), [dict(x=torch.randn(2, length, 8)) for length in {lengths}]
"""


def _write(
    tmp_path: Path, line: str = "pass", build: str = "pass", lengths: tuple[int, ...] = (10, 12)
) -> str:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MODEL).format(line=line, build=build, lengths=lengths))
    return f"{path}:build"


def _started(*args: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with passes of its own: the other tests share theirs."""
    return subprocess.run([sys.executable, "-m", "cftdiag", "check", *args], capture_output=True, text=True)


def _said(stderr: str) -> list[str]:
    """Lines that are not about how far the check is: a slow machine gets one every ten seconds."""
    return [line for line in stderr.splitlines() if not line.startswith("cftdiag: ")]


@pytest.mark.everything("8 s; a model that breaks stays")
def test_a_clean_model_is_viable(tmp_path: Path) -> None:
    saved = tmp_path / "check.json"
    done = _started(
        "--model", _write(tmp_path, lengths=(10, 10)), "--json", str(saved), "--fail-on", "warning"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _said(done.stderr) == []
    assert "3 x Block  layers.0-2  1 graph  fullgraph yes" in done.stdout
    assert "\x1b" not in done.stdout
    data = json.loads(saved.read_text())
    assert data["schema"] == "cftdiag.check/1"
    assert [b["fqn"] for b in data["blocks"]] == ["layers.0", "layers.1", "layers.2"]
    assert all(b["fullgraph"] and b["graph_breaks"] == 0 for b in data["blocks"])
    assert data["verdict"] == "viable"


def test_a_break_exits_1_and_names_the_line(tmp_path: Path, cftdiag_command: Command) -> None:
    done = cftdiag_command("check", "--model", _write(tmp_path, line="print('in the block')"), "--json", "-")
    assert done.returncode == 1, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"] == "not_viable"
    [finding] = [f for f in data["findings"] if f["severity"] == "error"]
    assert (finding["kind"], finding["cause"]) == ("graph_break", "print_call")
    assert finding["where"]["code"] == "print('in the block')"
    assert Path(finding["where"]["file"]).name == "mine.py"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("Qwne3-4B", "Qwen3-4B"),
        ("/no/such/dir/", "/no/such/dir"),
        ("no_such_file.py:build", "no_such_file.py"),
        ("", "model"),
    ],
)
def test_a_wrong_model_is_one_line_and_exit_2(model: str, says: str, cftdiag_command: Command) -> None:
    done = cftdiag_command("check", "--model", model)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(_said(done.stderr)) == 1
    assert says in done.stderr


def test_a_build_that_raises_is_one_line_and_exit_2(tmp_path: Path, cftdiag_command: Command) -> None:
    done = cftdiag_command("check", "--model", _write(tmp_path, build="raise KeyError('weights')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(_said(done.stderr)) == 1
    assert "weights" in done.stderr


def _descendants(pid: int) -> set[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found.update(children)
        todo += children
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_in_the_middle_is_one_line_and_leaves_no_child(tmp_path: Path) -> None:
    # the backend writes the marker: the pass is in mid-compile, and would stay there
    marker = tmp_path / "tracing"
    code = textwrap.dedent(
        f"""
        import time
        from torch._dynamo import register_backend

        @register_backend
        def stuck(gm, inputs):
            open({str(marker)!r}, "w").close()
            time.sleep(120)
            return gm.forward
        """
    )
    path = tmp_path / "mine.py"
    path.write_text(code + textwrap.dedent(MODEL).format(line="pass", build="pass", lengths=(10, 12)))
    process = subprocess.Popen(
        [sys.executable, "-m", "cftdiag", "check", "--model", f"{path}:build", "--compile-backend", "stuck"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background has SIGINT ignored, and Python then leaves it so
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 1500
        while not marker.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert marker.exists(), process.communicate()[1] if process.poll() is not None else "never compiled"
        children = _descendants(process.pid)
        assert children
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out, _said(err)) == (3, "", ["error: interrupted, no conclusion"])
    deadline = time.monotonic() + 120
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if _alive(pid)]
