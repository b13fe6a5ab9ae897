"""``python -m tests.faults --seed N [--count 200] [--only I] [--jobs 2] [--json FILE]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from pathlib import Path

from tests.faults.fault import injectors
from tests.faults.run import Result, results_of, scratch


def main(arguments: list[str] | None = None) -> int:
    """Run the faults of a seed; 0 when the check was right about all."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200, help="faults of this seed (default: 200)")
    parser.add_argument("--only", type=int, action="append", help="fault I of this seed; may be given again")
    parser.add_argument("--injector", default="", help="draw only this injector")
    parser.add_argument("--architecture", default="", help="draw only this model type")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument(
        "--keep",
        type=Path,
        help="append each result to this file as it comes; run what is not in it yet and what was wrong",
    )
    parser.add_argument(
        "--folder", type=Path, help="where the programs are written (default: a fresh folder)"
    )
    parser.add_argument("--confirm", action="store_true", help="ask torch only: no check, no judgement of it")
    parser.add_argument(
        "--proofs",
        choices=("some", "all", "none"),
        default="some",
        help="check one in ten as a user would, remedies and numbers included, and of the others what their fault needs "
        "(default); all; or none",
    )
    parser.add_argument("--from", type=int, default=0, dest="first", help="begin with fault I of the seed")
    parser.add_argument("--list", action="store_true", help="name the injectors and end")
    options = parser.parse_args(arguments)
    known = injectors()
    if options.list:
        for name in known:
            print(name)
        return 0
    if options.injector and options.injector not in known:
        parser.error(f"no injector {options.injector!r}; there are {', '.join(known)}")
    indices = options.only or list(range(options.first, options.first + options.count))
    results: list[Result] = []
    if options.keep:
        try:
            kept = taken_up(options.keep, options.seed, list(known))
        except ValueError as error:
            parser.error(str(error))
        results = [kept[i] for i in indices if i in kept and kept[i].right]
        done = {r.index for r in results}
        indices = [i for i in indices if i not in done]
        print(f"{len(results)} right in {options.keep}", flush=True)
    folder = options.folder or scratch()
    print(
        f"seed {options.seed}: {len(indices)} faults of {len(known)} injectors, programs in {folder}",
        flush=True,
    )
    chosen = {
        "injector": options.injector,
        "architecture": options.architecture,
        "confirm": options.confirm,
        "proofs": options.proofs,
    }
    for result, wall in results_of(options.seed, indices, str(folder), max(1, options.jobs), chosen):
        results.append(result)
        if options.keep:
            with options.keep.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")
        print(_record(result, options.seed, wall) if result.wrong else _right(result), flush=True)
    results.sort(key=lambda r: r.index)
    print(summary(results))
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(r) for r in results], indent=1))
    return 0 if all(r.right for r in results) else 1


def taken_up(path: Path, seed: int, names: list[str]) -> dict[int, Result]:
    """The last result of each fault in a file of ``--keep``, which is begun where there is none. Raises ValueError for one
    of another seed or of other injectors: its faults are others.
    """
    head = {"seed": seed, "injectors": names}
    if not path.exists():
        path.write_text(json.dumps(head) + "\n")
    first, *rest = path.read_text().splitlines()
    if json.loads(first) != head:
        raise ValueError(f"{path} is of another seed or of other injectors; give another file")
    return {r.index: r for r in (Result(**json.loads(line)) for line in rest)}


def _right(result: Result) -> str:
    return f"{result.index:4d} right  {result.seconds:5.1f} s  {result.program}"


def _record(result: Result, seed: int, wall: float) -> str:
    """What a reader needs of one failure."""
    lines = [f"{result.index:4d} WRONG  {result.seconds:5.1f} s  {result.injector}: {result.program}"]
    lines += [f"       program   {result.path}"] if result.path else []
    lines += [f"       again     python -m tests.faults --seed {seed} --only {result.index}"]
    lines += [f"       expected  {text}" for text in result.expected]
    lines += [f"       got       {text}" for text in result.got or ["nothing"]]
    lines += [f"       wrong     {text}" for text in result.wrong]
    if not result.path:
        lines += [f"       rejected  {text[:400]}" for text in result.rejected]
    return "\n".join(lines)


def summary(results: list[Result]) -> str:
    """The share by cause. A program with two faults counts for both."""
    by_cause: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        for cause in dict.fromkeys(result.causes):
            by_cause[cause].append(result.right)
    lines = ["", "cause                          right"]
    lines += [f"{cause:30} {sum(rights)} of {len(rights)}" for cause, rights in sorted(by_cause.items())]
    right = sum(r.right for r in results)
    rejected = sum(len(r.rejected) for r in results)
    seconds = sum(r.seconds for r in results)
    lines.append(
        f"{right} of {len(results)} programs right ({100 * right / max(1, len(results)):.1f}%); {rejected} draws rejected by "
        f"torch's log; {sum(r.carried_out for r in results)} verified remedies carried out in torch's own process; "
        f"{seconds / max(1, len(results)):.1f} s of a processor each"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
