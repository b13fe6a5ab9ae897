"""One tracker for the trainer's figures and the monitor's: who commits, who closes, and what a failure costs."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import trainer.trackers as trackers
from cftdiag.events import Event
from cftdiag.monitor.sinks import TrackerSink, WandbSink
from cftdiag.monitor.trackers import TensorBoard, Wandb


class Run:
    def __init__(self) -> None:
        self.id = "abc"
        self.rows: list[tuple[dict[str, float], bool]] = []
        self.metrics: list[tuple[str, str]] = []
        self.finished = 0

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, float], commit: bool) -> None:
        self.rows.append((row, commit))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    made = types.SimpleNamespace(run=None, init=lambda **_: Run())
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def test_a_run_of_our_own_is_committed_and_finished(wandb: types.SimpleNamespace) -> None:
    sink = WandbSink(project="p")
    sink.step(3, 0.5)
    sink.close()
    run = sink._tracker._run  # type: ignore[attr-defined]
    [(row, commit)] = run.rows
    assert row["cftdiag/step"] == 3 and row["cftdiag/step_seconds"] == 0.5 and commit
    assert run.metrics == [("cftdiag/*", "cftdiag/step")] and run.finished == 1


def test_the_scripts_run_keeps_its_rows_and_its_end(wandb: types.SimpleNamespace) -> None:
    wandb.run = Run()
    sink = WandbSink()
    sink.step(1, 0.5)
    sink.close()
    assert [commit for _, commit in wandb.run.rows] == [False] and wandb.run.finished == 0


def test_trainer_and_monitor_share_a_run(wandb: types.SimpleNamespace) -> None:
    tracker = Wandb()
    run = tracker._run
    sink = TrackerSink(tracker, shared=True)
    sink.step(1, 0.5)
    tracker.log(1, {"train/loss": 2.0, "val/loss": 1.0}, axis="train/step")
    sink.close()
    assert [commit for _, commit in run.rows] == [False, True]
    assert dict(run.metrics) == {"cftdiag/*": "cftdiag/step", "train/*": "train/step", "val/*": "train/step"}
    assert run.finished == 0
    tracker.close()
    assert run.finished == 1


class Failing:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def log(self, step: int, scalars: Any, *, axis: str, commit: bool = True) -> None:
        self.calls.append(axis)
        if step == 2:
            raise OSError("no space\nleft")

    def alert(self, kind: str, message: str, step: int) -> None:
        raise AssertionError

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("by", ["monitor", "trainer"])
def test_a_failure_on_one_side_leaves_it_out_on_both_and_is_told_once(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, told = Failing(), []
    monkeypatch.setattr(trackers, "_MAKE", {"wandb": lambda *_: failing})
    with trackers.Trackers(["wandb"], tmp_path, {}, say=told.append) as made:
        [sink] = made.sinks()
        sink.event(Event(time=0.0, rank=0, step=1, kind="recompile"))
        sink.step(1, 0.1)
        made.write({"step": 1, "loss": 1.0})
        if by == "monitor":
            sink.event(Event(time=0.0, rank=0, step=2, kind="recompile"))
            sink.step(2, 0.1)
        else:
            made.write({"step": 2, "loss": 1.0})
        made.write({"step": 3, "loss": 1.0})
        sink.event(Event(time=0.0, rank=0, step=3, kind="recompile"))
        sink.step(3, 0.1)
        sink.close()
    assert failing.calls[:2] == ["cftdiag/step", "train/step"] and len(failing.calls) == 3
    assert told == ["tracker wandb is left out from here on: OSError: no space left"]


def test_what_the_writer_thread_of_tensorboard_meets_prints_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(threading.Thread):
        def run(self) -> None:
            raise OSError(28, "No space left on device")

    class Writer(Failing):
        __module__ = "tensorboard.summary.writer.event_file_writer"

    heard: list[threading.ExceptHookArgs] = []
    hook = heard.append
    monkeypatch.setattr(threading, "excepthook", hook)
    board = TensorBoard(tmp_path)
    for thread in (Writer(), Failing()):
        thread.start()
        thread.join()
    board.close()
    assert len(heard) == 1 and threading.excepthook is hook
