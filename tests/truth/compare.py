"""Compares the recompiles and guards of two logs, one line for one line."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence, Set

_RECORD = re.compile(r"^(?:\[rank\d+\]:)?[VDIWE]\d+ \S+ \d+ \S+ (\[\S+\]) \[__(recompiles|guards)\] ?(.*)")
#: What differs between any two processes: addresses, object ids, timings.
_NOISE = ((re.compile(r"0x[0-9a-f]+|(?<!\d)\d{9,}"), "ADDR"), (re.compile(r"latency = \S+ us"), "latency"))

#: Who asked for a guard on a size, at the end of its line.
_ASKED = re.compile(r"\s+# \(_inductor/\S+ in (\w+)\)$")
#: A look-up in Inductor's cache of compiled graphs repeats the guards of what it finds; the prediction has no
#: such cache, and lowering asks later.
_LOOKUP = "_lookup_graph"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """What one run said. Compile ids are as torch numbers them."""

    recompiles: Mapping[str, Sequence[str]]
    """Step (``2 520``) -> the text of its recompiles."""
    guards: Mapping[str, Sequence[str]]
    """Compile id -> its guard lines."""


def parse(text: str) -> Log:
    """Read a log of ``TORCH_LOGS=recompiles,guards`` with our STEP lines in it."""
    recompiles: dict[str, list[str]] = {}
    guards: dict[str, list[str]] = collections.defaultdict(list)
    step = ""
    for line in text.splitlines():
        if line.startswith("STEP "):
            step = line.removeprefix("STEP ")
            recompiles[step] = []
            continue
        record = _RECORD.match(line)
        if record is None:
            continue
        compile_id, kind, said = record.groups()
        for pattern, word in _NOISE:
            said = pattern.sub(word, said)
        (recompiles.setdefault(step, []) if kind == "recompiles" else guards[compile_id]).append(
            said.rstrip()
        )
    return Log(recompiles=recompiles, guards=dict(guards))


def differences(real: Log, predicted: Log) -> list[str]:
    """Empty when compiles, their steps, recompile texts and guard lines agree one to one."""
    asked_early = {
        _ASKED.sub("", line)
        for lines in real.guards.values()
        for line in lines
        if (m := _ASKED.search(line)) and m[1] == _LOOKUP
    }
    real, predicted = _without_asker(real, asked_early), _without_asker(predicted, asked_early)
    found = []
    if list(real.recompiles) != list(predicted.recompiles):
        found.append(f"steps: real {list(real.recompiles)}, predicted {list(predicted.recompiles)}")
    if set(real.guards) != set(predicted.guards):
        found.append(f"compiles: real {sorted(real.guards)}, predicted {sorted(predicted.guards)}")
    for title, a, b in (
        ("recompiles of step", real.recompiles, predicted.recompiles),
        ("guards of", real.guards, predicted.guards),
    ):
        for key in a:
            lines = list(difflib.unified_diff(a[key], b.get(key, ()), "real", "predicted", n=0, lineterm=""))
            found += [f"{title} {key}: {line}" for line in lines[2:] if not line.startswith("@@")]
    return found


def _without_asker(log: Log, guards: Set[str]) -> Log:
    """The log with the asker left out of these guards; their expressions stay."""

    def cut(line: str) -> str:
        bare = _ASKED.sub("", line)
        return bare if bare in guards else line

    return dataclasses.replace(
        log, guards={key: [cut(line) for line in lines] for key, lines in log.guards.items()}
    )


def summary(log: Log) -> str:
    """``4 compiles at steps 0 100, 2 520, guards 1234``."""
    steps = [step for step, said in log.recompiles.items() if said]
    return f"{len(log.guards)} compiles (recompiles at {', '.join(steps) or 'no step'}), {sum(map(len, log.guards.values()))} guard lines"
