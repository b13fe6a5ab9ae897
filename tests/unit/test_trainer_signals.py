"""What a scheduler's signal does before the first step, and once steps are taken."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import click
import pytest

from trainer.config import TrainConfig
from trainer.lock import Lock
from trainer.signals import EXIT_STOPPED, STOPPED, Stop, StopSignals


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def marked(out: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((out / STOPPED).read_text())
    return read


def test_a_signal_ends_the_start_at_once_and_leaves_a_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    after = []

    def inner() -> None:
        send(signal.SIGUSR1)
        after.append("inner")

    def outer() -> None:
        assert signals.starting(out, inner) is None
        after.append("what comes between the two is run")

    with StopSignals() as signals:
        signals.starting(out, outer)
        send()  # torchrun and a scheduler both pass a signal on
        send(signal.SIGUSR1)
    assert after == ["what comes between the two is run"]
    assert marked(out) == {"step": 0, "signal": "SIGUSR1"}
    told = capsys.readouterr().err
    assert told == "SIGUSR1: stopped before its first step; start again with --resume auto\n"


def test_one_that_came_before_is_not_lost(tmp_path: Path) -> None:
    with StopSignals() as signals:
        send()  # while the command line is read
        assert signals.starting(tmp_path, lambda: 1) is None
    assert marked(tmp_path) == {"step": 0, "signal": "SIGTERM"}


def test_an_error_of_peers_that_left_is_the_same_stop(tmp_path: Path) -> None:
    def work() -> None:
        signals.ours, signals.step = True, 7
        signals.hold()
        send()
        raise RuntimeError("connection closed by peer")

    with StopSignals() as signals:
        signals.starting(tmp_path, work)
    assert marked(tmp_path) == {"step": 7, "signal": "SIGTERM"}


@pytest.mark.parametrize("begun", [True, False])
def test_an_error_of_its_own_is_none(tmp_path: Path, begun: bool) -> None:
    def work() -> None:
        if begun:
            signals.hold()
            signals.begin(False)
            send()
        raise RuntimeError("a bug")

    with StopSignals() as signals, pytest.raises(RuntimeError, match="a bug"):
        signals.starting(tmp_path, work)
    assert not (tmp_path / STOPPED).exists()


def test_ranks_that_agree_to_stop_mark_it_on_all(tmp_path: Path) -> None:
    def work() -> None:
        signals.hold()
        signals.begin(True)  # the signal came to another rank

    with StopSignals() as signals:
        signals.starting(tmp_path, work)
    assert marked(tmp_path) == {"step": 0, "signal": None}


def test_steps_are_finished(tmp_path: Path) -> None:
    def work() -> bool:
        signals.hold()
        signals.begin(False)
        send()
        return signals.requested()

    with StopSignals() as signals:
        assert signals.starting(tmp_path, work) is True
    assert signals.received == "SIGTERM" and not (tmp_path / STOPPED).exists()


@pytest.mark.parametrize("holder", ["another run", "this run", "a dead run"])
def test_the_mark_of_a_start_is_not_put_into_another_runs_directory(tmp_path: Path, holder: str) -> None:
    with Lock(tmp_path) as lock:
        if holder == "a dead run":
            text = json.loads(lock.path.read_text())
            lock.path.write_text(json.dumps({**text, "pid": 2**22 + 1}))
        with StopSignals() as signals:
            signals.ours = holder == "this run"
            signals.starting(tmp_path, send)
    assert (tmp_path / STOPPED).exists() == (holder != "another run")


def test_the_mark_of_an_earlier_stop_stays(tmp_path: Path) -> None:
    (tmp_path / STOPPED).write_text('{"step": 40, "signal": "SIGUSR1"}')
    with StopSignals() as signals:
        signals.starting(tmp_path, send)
    assert marked(tmp_path)["step"] == 40


def test_a_mark_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with StopSignals() as signals:
        signals.starting(tmp_path / "file" / "out", send)
    assert "warning: no " in capsys.readouterr().err


@pytest.mark.parametrize(("starting", "code"), [(True, -signal.SIGTERM), (False, 0)])
def test_a_forked_child_ends_in_the_start_and_lives_on_in_a_step(
    tmp_path: Path, starting: bool, code: int
) -> None:
    def work() -> int:
        if not starting:
            signals.hold()
            signals.begin(False)
        pid = os.fork()
        if not pid:
            send()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    with StopSignals() as signals:
        assert signals.starting(tmp_path, work) == code


def test_the_command_line_ends_with_85_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import cli

    read = cli.configuration

    def signalled(context: click.Context) -> TrainConfig:
        send()
        return read(context)

    monkeypatch.setattr(cli, "configuration", signalled)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main(["--demo", "--output-dir", str(tmp_path)])
        assert ended.value.code == EXIT_STOPPED
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "a later one must not change the code"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert marked(tmp_path) == {"step": 0, "signal": "SIGTERM"}


def test_stop_is_no_exception_that_a_library_handles() -> None:
    assert not issubclass(Stop, Exception)
