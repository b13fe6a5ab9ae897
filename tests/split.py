"""The suite in processes side by side: ``python -m tests.split [OPTIONS] [PYTEST ARGUMENTS]``.

Each file goes to one process, so that what it shares is made once; which one is settled by the processor time
that ``durations.json`` holds for each file, and is the same every time. (pytest-xdist runs tests beside its
own threads, and a process with threads is not safe to fork, which the tests do.) Lines of the processes are
shown as they come, what they have to say at the end one after the other, and one closing line for all.
``--processes N``: two by default; more than there are cores cost more than they win. ``--record`` writes
``durations.json`` again; ``--times FILE`` keeps each test's processor time. With paths among the arguments pytest
runs them as it is.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cftdiag.passes.launch import die_with_parent

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = Path(__file__).with_name("durations.json")
UNKNOWN = 10.0
"""Seconds that a file is taken for which was never measured."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CLOSING = re.compile(r"=*\s*(?P<counts>no tests ran|\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s\b.*")
_HEADING = re.compile(r"=+ (?!test session starts)\S.* =+$")
_ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "errors")
_NO_TESTS = 5  # pytest's exit code where a process had nothing to run


def share(files: Sequence[str], costs: Mapping[str, float], processes: int) -> list[list[str]]:
    """Files for each process: the costliest first, each to the process that has the least to do."""
    parts: list[list[str]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    for file in sorted(files, key=lambda name: (-costs.get(name, UNKNOWN), name)):
        least = loads.index(min(loads))
        parts[least].append(file)
        loads[least] += costs.get(file, UNKNOWN)
    return [sorted(part) for part in parts if part]


def merged(closings: Sequence[str], seconds: float) -> str:
    """One closing line for several, in pytest's own form."""
    counts: collections.Counter[str] = collections.Counter()
    for line in closings:
        match = _CLOSING.match(line)
        if match is None or match["counts"] == "no tests ran":
            continue
        for part in match["counts"].split(", "):
            number, name = part.split(" ")
            counts[{"warning": "warnings", "error": "errors"}.get(name, name)] += int(number)
    known = [name for name in _ORDER if counts[name]] + sorted(set(counts) - set(_ORDER))
    said = ", ".join(f"{counts[name]} {_singular(name, counts[name])}" for name in known) or "no tests ran"
    minutes = (
        f" ({int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d})"
        if seconds >= 60
        else ""
    )
    return f"{said} in {seconds:.2f}s{minutes}"


def _singular(name: str, count: int) -> str:
    return name.removesuffix("s") if count == 1 and name in ("warnings", "errors") else name


class Part:
    """One pytest process and what it says."""

    def __init__(self, command: Sequence[str], lock: threading.Lock) -> None:
        self.closing = ""
        self._lock, self._end = lock, [""]
        # a session of its own: Ctrl-C reaches it once, from here, and its end takes what it started along
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_as_child,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        closing_words = False
        for line in self._process.stdout:
            plain = _ANSI.sub("", line).strip()
            if _CLOSING.fullmatch(plain):
                self.closing = plain
                continue
            closing_words = closing_words or bool(_HEADING.match(plain))
            if closing_words:
                self._end.append(line)
            else:
                with self._lock:
                    sys.stdout.write(line)
                    sys.stdout.flush()

    def wait(self, timeout: float | None = None) -> int:
        """Exit code; raises ``subprocess.TimeoutExpired``."""
        return self._process.wait(timeout)

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def finish(self) -> str:
        """End whatever is left of it; returns what it said after its last test."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        return "".join(self._end)


def _as_child() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands side by side; returns the exit code for all of them."""
    started = time.monotonic()
    lock = threading.Lock()
    parts: list[Part] = []
    codes: list[int] = []
    try:
        parts = [Part(command, lock) for command in commands]
        codes = [part.wait() for part in parts]
    except KeyboardInterrupt:
        codes = [int(signal.SIGINT) + 128]
        for part in parts:
            part.interrupt()
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            for part in parts:
                part.wait(20)
    finally:
        for part in parts:
            sys.stdout.write(part.finish())
    print(merged([part.closing for part in parts], time.monotonic() - started), flush=True)
    failed = [code for code in codes if code not in (0, _NO_TESTS)]
    return max(map(abs, failed)) if failed else (_NO_TESTS if set(codes) == {_NO_TESTS} else 0)


def main(argv: Sequence[str]) -> int:
    """The command line; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.split", add_help=False, allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--times", type=Path)
    options, rest = parser.parse_known_args(argv)
    pytest = [sys.executable, "-m", "pytest", *rest]
    if options.times is not None:
        options.times.unlink(missing_ok=True)
    if any((ROOT / argument.split("::")[0]).exists() for argument in rest):
        kept_times = [f"--times={options.times.resolve()}"] if options.times is not None else []
        return subprocess.run([*pytest, *kept_times], cwd=ROOT).returncode
    if sys.stdout.isatty():
        pytest.append("--color=yes")
    kept = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    which = "everything" if "--everything" in rest else "default"
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    parts = share(files, kept.get(which) or kept.get("default", {}), options.processes)
    with tempfile.TemporaryDirectory() as folder:
        times = [Path(folder) / str(i) for i in range(len(parts))]
        code = run([[*pytest, f"--times={file}", *part] for file, part in zip(times, parts, strict=True)])
        if options.times is not None:
            options.times.write_text("".join(file.read_text() for file in times if file.exists()))
        if options.record:
            kept[which] = measured(times)
            DURATIONS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return code


def measured(files: Sequence[Path]) -> dict[str, float]:
    """Processor seconds by test file, from what ``--times`` wrote."""
    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    for line in (line for file in files for line in file.read_text().splitlines()):
        one = json.loads(line)
        seconds[one["test"].split("::")[0]] += one["cpu"]
    return {name: round(value, 1) for name, value in seconds.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
