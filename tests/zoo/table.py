"""The zoo's results as a table by family, and as a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.zoo.entries import FAMILIES

Row = Mapping[str, Any]
#: Where this machine has its packages.
_PACKAGES = re.compile(r"/\S*?/site-packages/")
HELD = ("agrees", "explained", "differs", "failed")
#: And what is no part of the share.
STATUSES = (*HELD, "not_trainable", "too_slow", "no_blocks")


def share(rows: Sequence[Row]) -> tuple[int, int]:
    """(classes that agree or are explained, classes held against the truth)."""
    counts = Counter(row["status"] for row in rows)
    right = counts["agrees"] + counts["explained"]
    return right, right + counts["differs"] + counts["failed"]


def kept(row: Row) -> dict[str, Any]:
    """The row as it is kept beside the page: what was run and what came out, without all that a run saw."""
    runs = [
        {
            "mode": run["mode"],
            "differences": [_PACKAGES.sub("", text) for text in run["differences"]],
            "explained": run["explained"],
            "compiles": len(run["true"]["compiles"]),
            "breaks": len({place for _, _, place in run["true"]["breaks"]}),
        }
        if "true" in run
        else run
        for run in row["runs"]
    ]
    return {**row, "why": _PACKAGES.sub("", row["why"]), "runs": runs}


def table(rows: Sequence[Row], of: Mapping[str, int]) -> list[str]:
    """Markdown lines: one a family. ``of``: how many classes each family has."""
    lines = [
        "| family | classes | held | agree | explained | differ | runs | compiles | breaks | not held |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (*FAMILIES, "all"):
        mine = [row for row in rows if name in (row["entry"]["family"], "all")]
        counts = Counter(row["status"] for row in mine)
        held = share(mine)[1]
        classes = sum(of.values()) if name == "all" else of.get(name, 0)
        runs = [run for row in mine for run in kept(row)["runs"]]
        cells = (
            name,
            classes,
            held,
            counts["agrees"],
            counts["explained"],
            counts["differs"] + counts["failed"],
            len(runs),
            sum(run["compiles"] for run in runs),
            sum(run["breaks"] for run in runs),
            len(mine) - held,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def details(rows: Sequence[Row]) -> list[str]:
    """What differs and what is explained, a line each."""
    lines = []
    for row in map(kept, rows):
        for run in row["runs"]:
            said = run["differences"]
            if run["explained"]:
                lines.append(f"- {row['entry']['cls']}, {run['mode']}: {run['explained']}")
            elif said:
                more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
                lines.append(f"- {row['entry']['cls']}, {run['mode']}: differs: {said[0]}{more}")
        if row["status"] == "failed":
            lines.append(f"- {row['entry']['cls']}: failed: {row['why'].strip().splitlines()[-1][:300]}")
    return lines


def page(rows: Sequence[Row], of: Mapping[str, int], versions: Mapping[str, str], code: str) -> str:
    """docs/zoo.md. ``code``: the state of our code; rows of another are counted, and their number is said."""
    right, held = share(rows)
    reasons = Counter(_reason(row) for row in rows if row["status"] not in HELD)
    seconds = sorted(row["cpu"] for row in rows if row.get("runs"))
    middle = seconds[len(seconds) // 2] if seconds else 0.0
    lines = [
        "# The zoo",
        "",
        "Written by `make zoo` ("
        + ", ".join(f"{k} {v}" for k, v in versions.items())
        + "): every model class"
        " that transformers can train, built small from its own configuration class, trained a few steps on batches that vary"
        " in length, padding and rows. What `cftdiag check` predicts is held against a real run of the same steps, compiled"
        " with `eager` or `aot_eager`, in a process without our code: compiles by step and block, places of breaks, blocks that"
        " break, hit the limit, are called, or are captured whole. How: [tests/zoo](../tests/zoo/README.md).",
        "",
        f"{right} of the {held} classes that were run agree or are explained;"
        f" {sum(of.values()) - len(rows)} of {sum(of.values())} are not run yet; `make zoo` goes on with them."
        f" One class takes {middle:.0f} s of a processor (median). {sum(row.get('code') == code for row in rows)} of the"
        f" {len(rows)} rows were made with the code as it is now; the others are not run again for every change of it. The rows"
        " are in [zoo.jsonl](zoo.jsonl), from which `make zoo` goes on.",
        "",
        *table(rows, of),
        "",
        "A class counts once, whatever the number of its runs. Of a class that is not held nothing is said.",
        "",
        "## What differs, and what is explained",
        "",
        *(details(rows) or ["Nothing so far."]),
        "",
        "## Not held",
        "",
        *([f"- {count}: {reason}" for reason, count in reasons.most_common()] or ["None so far."]),
    ]
    return "\n".join(lines) + "\n"


def _reason(row: Row) -> str:
    """Kinds of reason, not each error's own words."""
    why = row["why"]
    if row["status"] == "too_slow":
        return "torch's symbolic shapes take longer than 25 s of a processor"
    if row["status"] == "no_blocks":
        return "no layers repeat in it: the check says so and has nothing to compile by block"
    for needle, reason in (
        ("M parameters", "too large when shrunk"),
        ("ImportError", "needs a package that is not installed"),
        ("not built", "its configuration does not take small sizes"),
    ):
        if needle in why:
            return reason
    return "no form of inputs that the zoo knows trains it"
