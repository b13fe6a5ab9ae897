"""``python -m tests.truth [NAME ...]`` or ``make truth``: every scenario, both sides, exit code 1 when any
disagrees.
"""

from __future__ import annotations

import sys

from tests.truth.compare import differences, summary
from tests.truth.run import run
from tests.truth.scenarios import SCENARIOS


def main(names: list[str]) -> int:
    unknown = set(names) - set(SCENARIOS)
    if unknown:
        print(
            f"unknown scenario {', '.join(sorted(unknown))}; one of {', '.join(SCENARIOS)}", file=sys.stderr
        )
        return 2
    failed = 0
    for name in names or SCENARIOS:
        predicted, fast = run("predicted", name)
        real, slow = run("real", name)
        found = differences(real, predicted)
        failed += bool(found)
        print(
            f"{'differs' if found else 'agrees'}  {name}: {summary(real)}; real {slow:.0f} s, predicted {fast:.0f} s",
            flush=True,
        )
        for line in found[:20]:
            print(f"    {line[:200]}")
    print(f"{len(names or SCENARIOS) - failed} of {len(names or SCENARIOS)} scenarios agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
