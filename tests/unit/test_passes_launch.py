"""When a process may be forked for the passes of a live model."""

from __future__ import annotations

from pathlib import Path

import pytest

from cftdiag.passes import launch


def _task(tasks: Path, number: str, name: str | None) -> None:
    (tasks / number).mkdir(parents=True)
    if name is not None:
        (tasks / number / "comm").write_text(name + "\n")


def test_threads_of_autograd_are_seen_by_their_names(tmp_path: Path) -> None:
    """Python does not count them, and a forked child of theirs cannot run a backward."""
    assert not launch.autograd_threads(tmp_path / "none")
    _task(tmp_path, "1", "python")
    _task(tmp_path, "2", None)  # ended while its name was asked for
    assert not launch.autograd_threads(tmp_path)
    _task(tmp_path, "3", "pt_autograd_0")
    assert launch.autograd_threads(tmp_path)


def test_a_process_with_them_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.threading, "active_count", lambda: 1)
    monkeypatch.setattr(launch, "_THREADS", tmp_path)
    assert launch.LiveFork.safe()
    _task(tmp_path, "3", "pt_autograd_0")
    assert not launch.LiveFork.safe()
