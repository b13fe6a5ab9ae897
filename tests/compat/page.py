"""The page about releases of torch, from what was found in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.report.wording import plural

HEAD = """# Releases of torch

What holds under each release, as `make compat` found it: the private names of torch that `cftdiag doctor` probes, the corpus of
`tests/cases` against what each case expects, one model of each of eight architectures (verdict, compiles, graph breaks at two lengths), and Qwen3-4B
lowered for an H200 by Inductor (compiles at the default lengths, without proofs). `make test` runs on torch 2.13.0, the corpus included.
A release without a line was not examined; what was not run under one that has a line is named below.

```
make compat COMPAT_ARGS="--torch 2.14.1"
```
"""


#: What is known to differ and to matter here, and what became of it.
DIFFERENT = Path(__file__).with_name("different.md").read_text(encoding="utf-8").rstrip()


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a table with a line a release, then what is degraded and what differs."""
    rows = sorted(rows, key=lambda row: [int(part) for part in row["torch"].split(".") if part.isdigit()])
    lines = [
        HEAD,
        "| torch | transformers | triton | depth | private names | corpus | architectures | Qwen3-4B for an H200 |",
        "|---|---|---|---|---|---|---|---|",
        *map(_row, rows),
    ]
    lines += ["", *_architectures(rows), "", DIFFERENT]
    for row in rows:
        said = [
            *(f"not run: {text}" for text in row["left"]),
            *(f"degraded: {text}" for text in row["degraded"]),
            *row["problems"],
        ]
        if said:
            lines += ["", f"## torch {row['torch']}", "", *(f"- {_plain(text)}" for text in said)]
    return "\n".join(lines) + "\n"


def _architectures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line an architecture: compiles and breaks under each release."""
    names = dict.fromkeys(name for row in rows for name in row["models"])
    return [
        "| architecture | " + " | ".join(str(row["torch"]) for row in rows) + " |",
        "|---|" + "---|" * len(rows),
        *(
            "| " + " | ".join([name, *(_counts(row["models"].get(name)) for row in rows)]) + " |"
            for name in names
        ),
    ]


def _counts(model: Mapping[str, Any] | None) -> str:
    if model is None or model["compiles"] is None:
        return "-"
    compiles, breaks = plural(model["compiles"], "compile"), plural(model["breaks"], "break")
    return f"{model['verdict']}: {compiles}, {breaks}"


def _row(row: Mapping[str, Any]) -> str:
    whole = sum(not one["reason"] for one in row["models"].values())
    lowered = row["lowered"]
    return (
        "| "
        + " | ".join(
            (
                row["torch"],
                row["transformers"] or "-",
                row["triton"] or "-",
                row["depth"] or "none",
                "{} of {}".format(*row["names"]),
                "{} of {}".format(*row["corpus"]),
                f"{whole} of {len(row['models'])}",
                "not run"
                if lowered is None
                else lowered["reason"] or f"{lowered['verdict']}, {plural(lowered['compiles'], 'compile')}",
            )
        )
        + " |"
    )


def _plain(text: str) -> str:
    return " ".join(text.split())
