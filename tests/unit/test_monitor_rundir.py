"""Writing a run directory: nothing that a disk does loses a written line or reaches the caller."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import monitor_samples as samples
import pytest

from cftdiag.events import read_events
from cftdiag.monitor import rundir
from cftdiag.monitor.journal import FLUSH_STEPS, Journal


def test_a_line_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    warned: list[str] = []
    lines = rundir.Lines(tmp_path / "e.jsonl", warned.append)
    assert lines.write("one\n")
    assert (tmp_path / "e.jsonl").read_text() == "one\n"
    assert lines.write("two\n")
    assert (tmp_path / "e.jsonl").read_text() == "one\ntwo\n"
    assert not warned


def test_half_a_line_of_a_killed_writer_is_closed(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text("one\nhal")
    rundir.Lines(tmp_path / "e.jsonl", pytest.fail).write("two\n")
    assert (tmp_path / "e.jsonl").read_text() == "one\nhal\ntwo\n"


def test_a_full_disk_keeps_whole_lines_and_warns_once(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    # A file size limit makes write() take what fits, as a full disk does.
    code = """
        import resource, signal, sys
        from pathlib import Path
        from cftdiag.monitor import rundir
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
        path, warned = Path(sys.argv[1]), []
        lines = rundir.Lines(path, warned.append)
        done = [lines.write("0123456789\\n") for _ in range(5)]
        assert done == [True, True, False, False, False], done
        assert path.read_text() == "0123456789\\n" * 2, path.read_text()
        assert (len(warned), lines.lost) == (1, 3), (warned, lines.lost)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        assert not lines.write("too soon\\n")
        lines._retry_at = 1e-9
        assert lines.write("again\\n")
        assert path.read_text() == "0123456789\\n" * 2 + "again\\n"
        """
    run_python(code, str(tmp_path / "e.jsonl"))


def test_a_vanished_directory_is_not_made_again(tmp_path: Path) -> None:
    warned: list[str] = []
    folder = tmp_path / "run"
    folder.mkdir()
    lines = rundir.Lines(folder / "e.jsonl", warned.append)
    lines.write("one\n")
    shutil.rmtree(folder)
    assert not lines.write("two\n")
    assert not lines.write("three\n")
    assert len(warned) == 1
    assert not folder.exists()


def test_a_replaced_file_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    lines = rundir.Lines(path, pytest.fail)
    lines.write("one\n")
    path.unlink()
    lines.write("two\n")
    assert not path.exists() or path.read_text() == "two\n"
    assert path.read_text() == "two\n"


def test_a_read_only_directory_costs_one_warning(tmp_path: Path) -> None:
    warned: list[str] = []
    (tmp_path / "run").write_text("a file where the directory should be")
    journal = Journal(tmp_path / "run", 0, warned.append)
    journal.event(samples.compiled())
    journal.step(1, 0.1, (), 0.0)
    journal.state({"rank": 0})
    journal.end(1, {}, {})
    assert len(warned) == 1
    assert "the training goes on" in warned[0]


def test_only_one_process_writes_a_ranks_file(tmp_path: Path) -> None:
    first = rundir.Claim(tmp_path, 3)
    second = rundir.Claim(tmp_path, 3)
    assert first.path.name == "rank00003.jsonl"
    assert second.path.name == f"rank00003.{os.getpid()}.jsonl"
    first.close()
    assert rundir.Claim(tmp_path, 3).path == first.path


def test_steps_wait_for_company_and_events_do_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, pytest.fail)
    assert journal.path is not None
    journal.session({"rank": 0})
    for i in range(1, 5):
        journal.step(i, 0.25, [(2, 8)], 1.0)
    # The first step is told at once: a live view should not begin with silence.
    assert [e.step for e in read_events(journal.path)] == [0, 1]
    journal.event(samples.compiled(step=5))
    head, _, batch, compile_ = read_events(journal.path)
    assert head.noted.session == {"rank": 0}
    assert (batch.kind, batch.step, batch.to_dict()["detail"]) == (
        "step",
        4,
        {"first": 2, "seconds": [0.25] * 3, "shapes": [[[2, 8]]] * 3},
    )
    assert compile_.kind == "compile"


def test_a_batch_of_steps_is_written_once_a_second_and_before_it_grows(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, pytest.fail)
    written = [journal.step(i, 0.3, (), 10.0 + 0.3 * i) for i in range(1, 11)]
    assert written == [True, False, False, False, True, False, False, False, True, False]
    assert any(journal.step(i, 0.0, (), 13.0) for i in range(11, 11 + FLUSH_STEPS))


def test_lost_lines_are_told_when_writing_works_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, lambda text: None)
    assert journal._lines is not None
    journal._lines._retry_at = 1e12
    journal.event(samples.compiled())
    journal._lines._retry_at = 0.0
    journal.event(samples.compiled(step=2))
    assert [e.noted.lost if e.kind == "step" else None for e in read_events(journal._lines.path)] == [None, 1]


def test_json_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    rundir.write_json(path, {"a": 1})
    rundir.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_state_is_overwritten_in_place(tmp_path: Path) -> None:
    state = rundir.State(tmp_path / "s.json")
    for text in ('{"a": 1}', '{"a": 123456789}', '{"a": 2}'):
        state.write(text)
        assert rundir.read_json(tmp_path / "s.json") == json.loads(text)
    state.close()


def test_reading_needs_no_torch() -> None:
    names = ("monitor.run_files", "monitor.run_report", "monitor.run_state", "report.run_terminal", "cli.run")
    modules = ", ".join(f"cftdiag.{name}" for name in (*names, "report.watch_screen"))
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )
