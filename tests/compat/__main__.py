"""``python -m tests.compat [--torch VERSION | --python PATH]...`` or ``make compat``: what holds under other releases of torch.

Each asked-for release gets an environment beside the present one, as ``cftdiag upgrade --to torch==VERSION``
makes it; ``--python`` takes one that is there. In each: ``cftdiag doctor``, every case of the corpus against
what it expects, one model of each of eight architectures of the catalogue, and Qwen3-4B lowered for an H200.
What was found is kept by release in ``--state``, step by step: a call goes on where the one before it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cftdiag import catalogue, upgrade
from cftdiag.errors import CheckError, EnvironmentUnfit
from cftdiag.upgrade import Environment
from tests.cases.expect import CASES, expected, hold
from tests.compat.page import page

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("qwen3", "qwen3_moe", "llama", "gemma3_text", "mistral", "gpt2", "granite", "phi3")
#: Cases that one process runs.
AT_ONCE = 12
LOWERED = ("--model", "Qwen3-4B", "--attn", "sdpa", "--layers", "auto", "--target", "h200", "--no-verify")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument(
        "--torch", metavar="VERSION", action="append", default=[], help="make an environment with it"
    )
    parser.add_argument(
        "--python", metavar="PATH", action="append", default=[], help="an interpreter that has one"
    )
    parser.add_argument("--cases", type=int, metavar="N", help="only the first N cases of the corpus")
    parser.add_argument(
        "--most", type=int, metavar="N", help="end after N further steps; the next call goes on"
    )
    parser.add_argument("--anew", action="store_true", help="forget what was found of these releases")
    parser.add_argument("--state", type=Path, default=ROOT / ".cache" / "compat")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page there")
    options = parser.parse_args(arguments)
    options.state.mkdir(parents=True, exist_ok=True)
    left = sys.maxsize if options.most is None else options.most
    for environment in _environments(options.python, options.torch):
        left = examine(environment, CASES[: options.cases], options.state, _say, most=left, anew=options.anew)
    rows = [row(json.loads(file.read_text())) for file in sorted(options.state.glob("*.json"))]
    text = page(rows)
    print(text)
    if options.docs is not None:
        options.docs.write_text(text)
    return int(any(found["left"] or found["problems"] for found in rows))


def _environments(pythons: Sequence[str], releases: Sequence[str]) -> list[Environment]:
    """The present one where nothing is asked for."""
    there = [upgrade.existing(path) for path in pythons]
    made = [upgrade.make([f"torch=={release}"], None, _say) for release in releases]
    return [*there, *made] or [upgrade.present()]


def examine(
    environment: Environment,
    cases: Sequence[Path],
    state: Path,
    say: Callable[[str], None],
    *,
    most: int = sys.maxsize,
    anew: bool = False,
) -> int:
    """Find out what holds in an environment, step by step, each kept in ``state`` by the release of torch at once;
    steps that are there already are not taken again. Returns how many of ``most`` steps are left.
    """
    release = _release(environment)
    file = state / f"{release}.json"
    known = json.loads(file.read_text()) if file.exists() and not anew else {}
    found = {"corpus": {}, "models": {}, "lowered": None} | known
    if "doctor" not in found:
        found["doctor"] = json.loads(_run(environment, "-m", "cftdiag", "doctor", "--json").stdout)
    found["asked"] = [case.stem for case in cases]

    def keep() -> None:
        file.write_text(json.dumps(found, indent=1) + "\n")

    keep()
    say(f"torch {release}: depth {found['doctor']['depth']}")
    for architecture in ARCHITECTURES:
        if architecture not in found["models"] and most > 0:
            found["models"][architecture] = _verdict(environment, *_of_model(architecture))
            most -= 1
            keep()
            say(f"{release}: {architecture} {found['models'][architecture]['verdict']}")
    if found["lowered"] is None and most > 0:
        found["lowered"] = _verdict(environment, *LOWERED)
        most -= 1
        keep()
        say(f"{release}: lowered for an H200 {found['lowered']['verdict']}")
    todo = [case for case in cases if case.stem not in found["corpus"]]
    while todo and most > 0:
        some, todo = todo[:AT_ONCE], todo[AT_ONCE:]
        found["corpus"] |= _corpus(environment, some)
        most -= 1
        keep()
        held = sum(not problem for problem in found["corpus"].values())
        say(f"{release}: corpus {held} of {len(found['corpus'])}")
    return most


def _release(environment: Environment) -> str:
    found = upgrade.versions(environment, ("torch",), os.environ)["torch"]
    if found is None:
        raise EnvironmentUnfit(f"{environment.name}: has no torch; install it there")
    return found.partition("+")[0]


def row(found: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a release; ``problems`` are what does not hold, ``left`` what was not run."""
    doctor, models, lowered = found["doctor"], found["models"], found["lowered"]
    corpus = {case: found["corpus"][case] for case in found["asked"] if case in found["corpus"]}
    unrun = len(found["asked"]) - len(corpus)
    left = [
        *([f"{unrun} cases of the corpus"] if unrun else []),
        *(_of_model(architecture)[1] for architecture in ARCHITECTURES if architecture not in models),
        *(["the lowering for an H200"] if lowered is None else []),
    ]
    problems = [
        *(f"doctor: {text}" for text in doctor["problems"]),
        *(f"{case}: {problem}" for case, problem in corpus.items() if problem),
        *(f"{_of_model(a)[1]}: {model['reason']}" for a, model in models.items() if model["reason"]),
        *([f"Qwen3-4B for an H200: {lowered['reason']}"] if lowered and lowered["reason"] else []),
    ]
    return {
        "torch": doctor["versions"]["torch"].partition("+")[0],
        "transformers": doctor["versions"]["transformers"],
        "triton": doctor["versions"]["triton"],
        "depth": doctor["depth"],
        "names": [sum(name["ok"] for name in doctor["private_names"]), len(doctor["private_names"])],
        "degraded": doctor["degraded"],
        "corpus": [sum(not problem for problem in corpus.values()), len(corpus)],
        "models": models,
        "lowered": lowered,
        "problems": problems,
        "left": left,
    }


def _of_model(architecture: str) -> tuple[str, ...]:
    """Arguments of the check of the catalogue's first model of an architecture."""
    name = next(entry.name for entry in catalogue.entries() if entry.model_type == architecture)
    return ("--model", name, "--layers", "auto", "--lengths", "96,136", "--no-verify")


def _corpus(environment: Environment, cases: Sequence[Path]) -> dict[str, str]:
    """Each case and what differs from its expectation, empty where nothing does."""
    done = _run(environment, "-m", "tests.cases.runner", *map(str, cases))
    lines = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    return {case.stem: _difference(lines.get(case.stem), case) for case in cases}


def _difference(line: dict[str, Any] | None, case: Path) -> str:
    if line is None:
        return "did not end"
    if "report" not in line:
        return str(line.get("error", "no report")).strip().splitlines()[-1]
    try:
        hold(line["report"], expected(case))
    except AssertionError as error:
        return " ".join(str(error).split())[:300] or "another report than expected"
    return ""


def _verdict(environment: Environment, *arguments: str) -> dict[str, Any]:
    try:
        data = upgrade.check_in(environment, arguments)
    except CheckError as error:
        return {"verdict": "error", "reason": str(error), "compiles": None, "breaks": None}
    wrong = data["verdict"] not in ("viable", "viable_with_recompiles")
    return {
        "verdict": data["verdict"],
        "reason": f"verdict {data['verdict']}" if wrong else "",
        "compiles": len(data["compiles"]),
        "breaks": sum(block["graph_breaks"] for block in data["blocks"]),
    }


def _run(environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [environment.python, *arguments], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
