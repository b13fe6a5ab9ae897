"""The lock of an output directory: living runs are respected, dead ones are not, here and elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer import lock
from trainer.lock import NAME, Holder, Lock


def put(directory: Path, holder: Holder) -> None:
    (directory / NAME).write_text(json.dumps(dataclasses.asdict(holder)))


def elsewhere() -> Holder:
    return dataclasses.replace(Holder.here(), host="node7", machine="another boot")


def test_one_holds_it_and_the_second_is_told_who(tmp_path: Path) -> None:
    with Lock(tmp_path):
        with pytest.raises(
            ValueError, match=rf"in use by another run \(process {os.getpid()} on .*, since 20"
        ) as e:
            Lock(tmp_path).__enter__()
        assert "\n" not in str(e.value)
        assert [p.name for p in tmp_path.iterdir()] == [NAME], "nothing else is left there"
    assert list(tmp_path.iterdir()) == []
    with Lock(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from trainer.lock import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=f"process {process.pid} on"):
        Lock(tmp_path).__enter__()
    process.send_signal(signal.SIGKILL)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    told: list[str] = []
    with Lock(tmp_path, say=told.append):  # not reaped yet: a zombie is dead
        assert len(told) == 1 and f"took over {tmp_path} from a run that is dead" in told[0]
    process.wait()


def test_a_number_given_to_another_process_is_not_the_holder(tmp_path: Path) -> None:
    here = Holder.here()
    put(tmp_path, dataclasses.replace(here, birth=here.birth - 1, token="old"))
    with Lock(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["token"] != "old"


def test_a_run_elsewhere_is_dead_when_its_heart_does_not_beat(tmp_path: Path) -> None:
    put(tmp_path, elsewhere())
    told: list[str] = []
    with Lock(tmp_path, patience=0.3, say=told.append):
        pass
    assert "waiting up to 0.3 s" in told[0] and "took over" in told[1]


def test_a_run_elsewhere_that_lives_is_respected(tmp_path: Path) -> None:
    put(tmp_path, elsewhere())
    end = threading.Event()

    def beat() -> None:
        while not end.wait(0.01):
            os.utime(tmp_path / NAME)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(ValueError, match="on node7"):
            Lock(tmp_path, patience=60).__enter__()
    finally:
        end.set()
        heart.join()


def test_the_holder_beats_and_makes_it_anew(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with Lock(tmp_path, beat=0.01):
        first = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == first:
            time.sleep(0.01)
        path.unlink()
        while not path.exists():
            time.sleep(0.01)
    assert not path.exists()


def test_the_holder_learns_that_it_was_taken(tmp_path: Path) -> None:
    with Lock(tmp_path, beat=0.01) as mine:
        mine.require()
        put(tmp_path, dataclasses.replace(elsewhere(), token="theirs"))
        while mine.lost is None:
            time.sleep(0.01)
        with pytest.raises(ValueError, match=r"taken over by another run .*node7"):
            mine.require()
    assert json.loads((tmp_path / NAME).read_text())["token"] == "theirs", "it is not ours to remove"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}'])
def test_what_is_no_lock_is_taken_over_once_it_is_old(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with Lock(tmp_path, patience=0.2):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


def test_of_many_that_find_a_dead_one_a_single_one_gets_it(tmp_path: Path) -> None:
    here = Holder.here()
    for _ in range(20):
        put(tmp_path, dataclasses.replace(here, birth=here.birth - 1, token="old"))
        got, refused = [], []
        gate, done = threading.Barrier(8), threading.Barrier(8)

        def run(
            gate: threading.Barrier, done: threading.Barrier, got: list[Lock], refused: list[str]
        ) -> None:
            gate.wait()
            mine = Lock(tmp_path)
            try:
                mine.__enter__()
            except ValueError as error:
                refused.append(str(error))
                mine = None  # type: ignore[assignment]
            else:
                got.append(mine)
            done.wait()
            if mine is not None:
                mine.__exit__(None, None, None)

        threads = [threading.Thread(target=run, args=(gate, done, got, refused)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1 and len(refused) == 7


def test_a_file_system_without_hard_links_still_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lock.os, "link", never)
    with Lock(tmp_path), pytest.raises(ValueError, match="in use by another run"):
        Lock(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []
