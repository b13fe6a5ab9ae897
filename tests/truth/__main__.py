"""``python -m tests.truth [NAME ...]`` or ``make truth``: every scenario, both sides, exit code 1 when any
disagrees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.truth import scripts
from tests.truth.compare import differences, summary
from tests.truth.run import run
from tests.truth.scenarios import SCENARIOS


def main(names: list[str]) -> int:
    known = [*SCENARIOS, *scripts.SCRIPTS]
    unknown = set(names) - set(known)
    if unknown:
        print(f"unknown scenario {', '.join(sorted(unknown))}; one of {', '.join(known)}", file=sys.stderr)
        return 2
    asked = names or known
    agreed = 0
    for name in asked:
        if name in scripts.SCRIPTS and (missing := scripts.SCRIPTS[name].missing):
            print(f"left out  {name}: {missing} is not installed", flush=True)
            agreed += 1
            continue
        said, *found = _model(name) if name in SCENARIOS else _script(name)
        agreed += not found
        print(f"{'differs' if found else 'agrees'}  {name}: {said}", flush=True)
        for line in found[:20]:
            print(f"    {line[:200]}")
    print(f"{agreed} of {len(asked)} scenarios agree")
    return 0 if agreed == len(asked) else 1


def _model(name: str) -> Iterator[str]:
    """A summary, then what differs between a prediction of ``--target cpu`` and Inductor."""
    predicted, fast = run("predicted", name)
    real, slow = run("real", name)
    yield f"{summary(real)}; real {slow:.0f} s, predicted {fast:.0f} s"
    yield from differences(real, predicted)


def _script(name: str) -> Iterator[str]:
    """A summary, then what differs between a rehearsal and the run."""
    happened, found = scripts.compare(name)
    yield happened.summary()
    yield from found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
