"""``python -m tests.zoo`` or ``make zoo``: see the README beside this file."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.zoo.entries import Entry, entries
from tests.zoo.one import hold
from tests.zoo.server import Server
from tests.zoo.table import STATUSES, details, kept, page, share, table

KEPT = Path(__file__).resolve().parents[2] / "docs" / "zoo.jsonl"


def versions() -> dict[str, str]:
    """What a row depends on beside our own code."""
    return {name: metadata.version(name) for name in ("torch", "transformers")}


def code() -> str:
    """A digest of our code that a row depends on, too: a row that agreed with an older state is kept, and told apart."""
    folder = Path(__file__).resolve().parents[2]
    files = sorted([*folder.glob("cftdiag/**/*.py"), *folder.glob("tests/zoo/*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="classes, model types or families")
    parser.add_argument("--sample", type=int, metavar="N", help="N classes, the same for the same seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all-modes", action="store_true", help="every mode of every class")
    parser.add_argument("--minutes", type=float, help="start no further class after so many minutes")
    parser.add_argument("--again", choices=STATUSES, action="append", default=[], help="run these once more")
    parser.add_argument("--state", type=Path, default=Path(".cache/zoo.jsonl"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page there")
    options = parser.parse_args(arguments)

    everything = entries()
    wanted = [e for e in everything if re.search(options.only, f"{e.family} {e.model_type} {e.cls}")]
    if options.sample is not None:
        chosen = set(random.Random(options.seed).sample(range(len(wanted)), min(options.sample, len(wanted))))
        wanted = [e for i, e in enumerate(wanted) if i in chosen]
    known = _known(options.state)
    done = {cls for cls, row in known.items() if row["status"] not in options.again}
    todo = [e for e in wanted if e.cls not in done]
    print(f"{len(todo)} classes to run, {len(wanted) - len(todo)} known", file=sys.stderr)
    _run(todo, options.state, known, all_modes=options.all_modes, minutes=options.minutes)

    rows = [known[e.cls] for e in wanted if e.cls in known]
    of = Counter(e.family for e in wanted)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.docs is not None:
        every = [known[e.cls] for e in everything if e.cls in known]
        options.docs.write_text(page(every, Counter(e.family for e in everything), versions(), code()))
        lines = [json.dumps(kept(row)) + "\n" for row in every]
        options.docs.with_suffix(".jsonl").write_text("".join(lines))
    right, held = share(rows)
    print("\n".join([*table(rows, of), "", *details(rows)]))
    print(f"{right} of {held} classes agree or are explained; {len(wanted) - len(rows)} are left")
    return int(right != held)


def _known(state: Path) -> dict[str, dict[str, Any]]:
    """The last row of each class, made with these versions: of the repository's, then of this machine's."""
    rows: dict[str, dict[str, Any]] = {}
    for file in (KEPT, state):
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if row["versions"] == versions():
                rows[row["entry"]["cls"]] = row
    return rows


def _run(
    todo: Sequence[Entry],
    state: Path,
    known: dict[str, dict[str, Any]],
    *,
    all_modes: bool,
    minutes: float | None,
) -> None:
    """Hold each against the truth; a row is kept as soon as it is known, and Ctrl-C loses the current one."""
    state.parent.mkdir(parents=True, exist_ok=True)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    state_of_code = code()
    truth, predict = Server("truth"), Server("predict")
    try:
        for entry in todo:
            if until is not None and time.monotonic() > until:
                return
            row = {
                **hold(entry, truth, predict, all_modes=all_modes),
                "versions": versions(),
                "code": state_of_code,
            }
            with open(state, "a") as file:
                file.write(json.dumps(row) + "\n")
            known[entry.cls] = row
            _tell(row, lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
    finally:
        truth.close()
        predict.close()


def _tell(row: dict[str, Any], say: Callable[[str], None]) -> None:
    say(
        f"{row['status']:14} {row['entry']['family']:10} {row['entry']['cls']:48} {row['cpu']:6.1f} s  {row['why'][:120]}"
    )
    for run in row.get("runs", ()):
        for text in run["differences"][:3]:
            say(f"    {run['mode']}: {text[:200]}")


if __name__ == "__main__":
    sys.exit(main())
