"""The viability table: every model of the catalogue under several attentions.

    python -m cftdiag.check.viability [--out FILE] [--state FILE] [--timeout S] [--jobs N] [--attn sdpa,eager,flash_attention_2] [FILTER]

Each result is appended to the state file as soon as it is known, so an interrupted run goes on where it
stopped; results of other versions of torch or transformers are not taken over. Checks run at ``--layers
auto`` (the fewest layers that hold every kind of block) unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from cftdiag import catalogue
from cftdiag.check.driver import run
from cftdiag.check.runner import Runner
from cftdiag.errors import CheckError
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import ForkServer
from cftdiag.subject import resolve

#: Seconds that depth trace gets at least: tens are enough on an idle machine.
TRACE_S = 240.0
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")


def versions() -> dict[str, str]:
    """Versions that a row depends on."""
    return {name: metadata.version(name) for name in ("torch", "transformers", "cftdiag")}


def check_one(
    model: str, attn: str, *, layers: str, timeout: float, local: threading.local, **more: Any
) -> dict[str, Any]:
    """One row: a verdict, or the one-line reason why there is none. ``more`` are further options of the
    check.
    """
    started = time.monotonic()
    row: dict[str, Any] = {"model": model, "attn": attn, "layers": layers, **versions()}
    if getattr(local, "server", None) is None:
        local.server = ForkServer()

    def check(**changed: Any) -> dict[str, Any]:
        options = CheckOptions(
            **{
                "model": model,
                "attn": attn,
                "layers": layers,
                "timeout": timeout,
                "verify": False,
                **more,
                **changed,
            }
        )
        return run(options, Runner(resolve(model), local.server)).to_dict()

    try:
        report = check()
        kinds: dict[str, int] = {}
        for block in report["blocks"]:
            kinds[block["kind"]] = kinds.get(block["kind"], 0) + 1
        row |= {
            "model_type": report["subject"]["model_type"],
            "kinds": kinds,
            "verdict": report["verdict"],
            "compiles": len(report["compiles"]),
            "causes": sorted(
                {f"{f['kind']}:{f['cause']}" for f in report["findings"] if f["severity"] != "info"}
            ),
            "reason": report["undetermined"][0]
            if report["verdict"] == "error" and report["undetermined"]
            else "",
        }
        if report["verdict"] == "error" and "perf:compile_time_depth" in row["causes"]:
            # tracing the backward exploded: the forward alone still tells whether the blocks are captured
            # whole
            row["at_trace"] = check(depth="trace", timeout=max(timeout, TRACE_S))["verdict"]
    except CheckError as error:
        row |= {
            "verdict": "refused" if error.exit_code == 2 else "error",
            "kinds": {},
            "compiles": None,
            "causes": [],
            "reason": str(error),
        }
    row["seconds"] = round(time.monotonic() - started, 1)
    return row


def table(rows: Sequence[dict[str, Any]], details: str) -> str:
    """The Markdown page: a line for each family of models and each attention's outcome in it. ``details`` is the
    file that holds every check.
    """
    order = {entry.name: i for i, entry in enumerate(catalogue.entries())}
    rows = sorted(rows, key=lambda r: (order.get(r["model"], len(order)), r["attn"]))
    current = versions()
    lines = [
        "# Viability of the catalogue",
        "",
        f"Written by `make catalogue` (torch {current['torch']}, transformers {current['transformers']}, cftdiag {current['cftdiag']}):"
        " training step, bfloat16, batch 1, lengths 512, 640, 777, 1024, `fullgraph=True, dynamic=True` per block, depth joint,"
        " on a CPU without weights. A check that did not end in its time is made again at depth trace (forward only).",
        "Layers: the fewest that hold every kind of block. In brackets: graphs of the forward over the four lengths, and the"
        f" causes at warning or above. Each check, with its blocks and seconds: [{details}]({details}).",
        "",
        f"{len(rows)} of {len(catalogue.entries()) * len(ATTENTIONS)} checks are done; the command goes on with the others.",
        "",
        "| family | models | " + " | ".join(ATTENTIONS) + " |",
        "|---|---|" + "---|" * len(ATTENTIONS),
    ]
    families: dict[str, list[dict[str, Any]]] = {}
    types = {r["model"]: r["model_type"] for r in rows if r.get("model_type")}
    for r in rows:
        families.setdefault(types.get(r["model"], r["model"]), []).append(r)
    for family, members in families.items():
        models = list(dict.fromkeys(r["model"] for r in members))
        name = models[0] if len(models) == 1 else f"{len(models)}, from {models[0]}"
        cells = [_outcomes([r for r in members if r["attn"] == attn]) for attn in ATTENTIONS]
        lines.append(f"| {family} | {name} | " + " | ".join(cells) + " |")
    counts = Counter((r["attn"], r["verdict"]) for r in rows)
    lines += ["", "| attention | verdict | models |", "|---|---|---|"]
    lines += [f"| {attn} | {verdict} | {n} |" for (attn, verdict), n in sorted(counts.items())]
    return "\n".join(lines) + "\n"


def _outcomes(rows: Sequence[dict[str, Any]]) -> str:
    """What became of a family under one attention; several outcomes with how many models had each."""
    found = Counter(map(_outcome, rows))
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{n} x {outcome}" for outcome, n in found.most_common()) or "-"


def _outcome(row: dict[str, Any]) -> str:
    verdict = f"{row['verdict']}, at depth trace {row['at_trace']}" if row.get("at_trace") else row["verdict"]
    compiles = [] if row["compiles"] is None else [str(row["compiles"])]
    why = [*compiles, *row["causes"]] if row["causes"] or not row["reason"] else [*compiles, row["reason"]]
    return f"{verdict} ({', '.join(why)})".replace("|", "/") if why else verdict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--out", type=Path, default=Path("docs/viability.md"))
    parser.add_argument("--state", type=Path, default=Path(".cache/viability.jsonl"))
    parser.add_argument("--timeout", type=float, default=180.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--layers", default="auto")
    parser.add_argument("--attn", default=",".join(ATTENTIONS))
    options = parser.parse_args()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    current = versions()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if options.state.exists():
        for line in options.state.read_text().splitlines():
            row = json.loads(line)
            if all(row.get(k) == v for k, v in current.items()) and row["layers"] == options.layers:
                rows[row["model"], row["attn"]] = row
    names = [e.name for e in catalogue.entries() if options.filter.lower() in e.name.lower()]
    todo = [(n, a) for n in names for a in options.attn.split(",") if (n, a) not in rows]
    print(f"{len(todo)} checks to do, {len(rows)} known", file=sys.stderr)
    local, lock = threading.local(), threading.Lock()

    def one(job: tuple[str, str]) -> None:
        row = check_one(*job, layers=options.layers, timeout=options.timeout, local=local)
        with lock, open(options.state, "a") as file:
            file.write(json.dumps(row) + "\n")
            rows[job] = row
            line = f"{row['model']:28} {row['attn']:18} {row['verdict']:24} {row['seconds']:6.1f} s  {row['reason'][:100]}"
            print(line, file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, todo))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    details = options.out.with_suffix(".jsonl")
    details.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    options.out.write_text(table(list(rows.values()), details.name))
    print(f"wrote {options.out} and {details}", file=sys.stderr)


if __name__ == "__main__":
    main()
