"""What the passes of the corpus said, recorded and played back.

``python -m tests.recordings.corpus [CASE ...]`` writes ``<torch>/corpus/<case>.jsonl`` for all cases or some: a
line about the recording, then each pass's mode and its messages, as they cross from a child to the check. Played
back, the check decides, judges and reports on them without torch. Record again after a change of what the
recorder or the passes say, and read the difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cftdiag.check import CheckReport
from cftdiag.check.driver import run
from cftdiag.check.runner import Runner
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import LiveFork
from cftdiag.passes.messages import Done, Message, PassTask, Send, encode
from cftdiag.subject import Origin
from tests.cases.expect import CASES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
COMMAND = "python -m tests.recordings.corpus"
#: What differs between machines; the packages may lie in the repository.
_PLACES = {
    "<packages>": sysconfig.get_paths()["purelib"],
    "<python>": sysconfig.get_paths()["stdlib"],
    "<repository>": str(ROOT),
}


def recordings() -> list[Path]:
    """The files that there are, of all versions of torch."""
    return sorted(FOLDER.glob("*/corpus/*.jsonl"))


def record(case: Path) -> CheckReport:
    """Check a case and write down what its passes said."""
    import torch

    from cftdiag.passes.run_pass import run_task
    from tests.cases.runner import load, subject

    file = FOLDER / torch.__version__.partition("+")[0] / "corpus" / f"{case.stem}.jsonl"
    file.parent.mkdir(exist_ok=True, parents=True)
    live = subject(load(case))

    def write(line: dict[str, Any]) -> None:
        text = json.dumps(line, default=str, sort_keys=True)
        for name, place in _PLACES.items():
            text = text.replace(place, name)
        with open(file, "a") as out:
            out.write(text + "\n")

    def recorded(task: PassTask, send: Send) -> None:
        write({"pass": task.mode})

        def tee(message: Message) -> None:
            if _matters(message):
                write(encode(message))
            send(message)

        run_task(task, tee, live)

    file.write_text("")
    command = f"{COMMAND} {case.relative_to(ROOT)}"
    write({"command": command, "torch": torch.__version__, "model": type(live.model).__name__})
    origin = Origin(type="live", name=type(live.model).__name__)
    return run(CheckOptions(verify=False), Runner(origin, LiveFork(recorded)))


def _matters(message: Message) -> bool:
    return encode(message)["type"] != "ProgressEvent"


def replay(file: Path) -> CheckReport:
    """The check of a recording."""
    text = file.read_text()
    for name, place in _PLACES.items():
        text = text.replace(name, place)
    about, *lines = map(json.loads, text.splitlines())
    player = _Player(lines)
    return run(CheckOptions(verify=False), Runner(Origin(type="live", name=about["model"]), player))


class _Player:
    """A launcher whose children say what was recorded. Nothing is forked: a test's process has threads, and one
    of them may hold a lock that a forked child would wait for without an end.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._passes = _passes(lines)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, task: PassTask, write_fd: int, scratch: Path) -> int:
        mode, said = next(self._passes, (None, []))
        assert mode == task.mode, (
            f"the check runs a pass {task.mode!r}, recorded is {mode!r}: record again with {COMMAND}"
        )
        file = scratch / "said.jsonl"
        file.write_text("".join(json.dumps(message) + "\n" for message in [*said, encode(Done())]))
        self._child = subprocess.Popen(["cat", str(file)], stdout=write_fd, start_new_session=True)
        return self._child.pid

    def wait(self) -> int | None:
        if self._child is not None:
            self._child.wait()
        return None

    def close(self) -> None:
        pass


def _passes(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    mode: str | None = None
    said: list[dict[str, Any]] = []
    for line in lines:
        if "pass" in line:
            if mode is not None:
                yield mode, said
            mode, said = line["pass"], []
        else:
            said.append(line)
    if mode is not None:
        yield mode, said


def main(chosen: list[Path]) -> None:
    """Record, each case in a child of its own."""
    from tests.warm import warm_up

    warm_up()
    for case in chosen:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            report = record(case)
            print(f"{case.stem}: {report.verdict}, {len(report.findings)} findings", flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{case.stem} was not recorded")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or CASES)
