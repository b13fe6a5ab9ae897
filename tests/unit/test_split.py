"""The suite in processes side by side: who runs what, and that nothing which one of them says is lost."""

from __future__ import annotations

import collections
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests import split

COSTS = {"a": 60.0, "b": 50.0, "c": 30.0, "d": 20.0, "e": 1.0}


def test_files_are_shared_out_by_their_cost_and_always_alike() -> None:
    parts = split.share(list("edcba"), COSTS, 2)
    assert parts == split.share(list("abcde"), COSTS, 2) == [["a", "d", "e"], ["b", "c"]]
    assert split.share(["a"], COSTS, 2) == [["a"]], "no process without a file"


def test_a_file_never_measured_is_shared_out_too() -> None:
    parts = split.share(["a", "new"], COSTS, 2)
    assert parts == [["a"], ["new"]]


def test_counts_of_all_closing_lines_are_added() -> None:
    closings = [
        "3 passed, 1 skipped, 2 deselected, 1 warning in 3.20s",
        "=== 1 failed, 12 passed, 1 error in 71.04s (0:01:11) ===",
        "no tests ran in 0.01s",
    ]
    assert split.merged(closings, 75.5) == (
        "1 failed, 15 passed, 1 skipped, 2 deselected, 1 warning, 1 error in 75.50s (0:01:15)"
    )
    assert split.merged([], 0.1) == "no tests ran in 0.10s"


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what a start of pytest costs are plugins that these files do not use."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def command(*files: Path) -> list[str]:
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(files[0].parent)]
    return [sys.executable, "-m", "pytest", *options, *map(str, files)]


def test_failures_of_both_are_shown_and_one_closing_line_comes_last(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(
            f"def test_good(): pass\ndef test_bad(): assert {name!r} == 'else'\n"
        )
    code = split.run([command(tmp_path / "test_one.py"), command(tmp_path / "test_two.py")])
    out = capfd.readouterr().out
    assert code == 1
    assert "assert 'one' == 'else'" in out and "assert 'two' == 'else'" in out
    assert out.count("= FAILURES =") == 2
    assert re.fullmatch(r"2 failed, 2 passed in [\d.]+s", out.splitlines()[-1])
    assert len(re.findall(r" in [\d.]+s", out)) == 1


def test_a_process_without_tests_is_no_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_some.py").write_text("def test_good(): pass\n")
    (tmp_path / "test_none.py").write_text("")
    some, none = command(tmp_path / "test_some.py"), command(tmp_path / "test_none.py")
    assert split.run([some, none]) == 0
    assert split.run([none]) == 5
    capfd.readouterr()


def test_a_process_that_dies_fails_the_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_dies.py").write_text("import os\ndef test_dies(): os.kill(os.getpid(), 9)\n")
    assert split.run([command(tmp_path / "test_dies.py")]) == 9
    capfd.readouterr()


def test_ctrl_c_ends_all_and_says_what_was_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(
            textwrap.dedent(f"""
            import pathlib, subprocess, sys, time
            def test_good(): pass
            def test_stuck():
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                pathlib.Path(__file__).with_name("pid-{name}").write_text(str(child.pid))
                time.sleep(600)
            """)
        )
    commands = [command(tmp_path / f"test_{name}.py") for name in ("one", "two")]
    code = f"import sys; from tests import split; sys.exit(split.run({commands!r}))"
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=split.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background has SIGINT ignored, and Python then leaves it so
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    marks = [tmp_path / "pid-one", tmp_path / "pid-two"]
    while not all(mark.exists() and mark.read_text() for mark in marks):
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate()
    assert started.returncode == 130
    assert out.splitlines()[-1].startswith("2 passed in ")
    for mark in marks:
        stat = Path(f"/proc/{mark.read_text()}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_processor_time_is_kept_by_file(tmp_path: Path) -> None:
    lines = [{"test": "tests/a.py::x", "cpu": 1.25}, {"test": "tests/a.py::y[0]", "cpu": 2.0}]
    (tmp_path / "times").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert split.measured([tmp_path / "times"]) == {"tests/a.py": 3.2}


def test_no_two_files_share_a_name() -> None:
    """One process imports test files by their base names; two of one name end it before its first test."""
    names = collections.Counter(path.name for path in (split.ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
