"""Write the table of remedies that were proved on the examples of the causes: ``python -m tests.cases.proved
docs/proved-remedies.md``.

Every example of ``cftdiag explain`` is checked with proofs on; the page lists what each remedy did to its
cause.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from cftdiag.diagnose.engine.cause import EXAMPLES

ROOT = Path(__file__).parents[2]


def reports() -> list[dict[str, Any]]:
    """One line of the runner for each example."""
    files = sorted(str(p) for p in EXAMPLES.glob("*.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cases.runner", "--verify", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")),
        key=lambda line: line["case"],
    )


def page(lines: list[dict[str, Any]]) -> str:
    """The Markdown page."""
    rows, proved = [], set()
    for line in lines:
        for finding in (line.get("report") or {}).get("findings", ()):
            if finding["cause"].replace(".", "_") != line["case"]:
                continue
            for remedy in finding["remedies"]:
                if remedy["verified"] is None:
                    continue
                if remedy["verified"]:
                    proved.add(finding["cause"])
                before, after = remedy["before"]["count"], remedy["after"]["count"]
                cells = (
                    f"[{finding['cause']}](causes/{finding['cause']}.md)",
                    finding["kind"],
                    remedy["summary"].replace("|", "/"),
                )
                rows.append(
                    [
                        *cells,
                        "yes" if remedy["verified"] else "no",
                        f"{before} -> {after}",
                        "unsafe" if remedy["unsafe"] else "",
                    ]
                )
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    head = [
        "# Remedies proved on the examples",
        "",
        f"Written by `python -m tests.cases.proved docs/proved-remedies.md` ({versions}): every example of `cftdiag explain CAUSE` checked, each"
        " mechanical remedy applied and the check run again. A remedy that does not help its example is listed as such. At least one remedy is"
        f' proved for {len(proved)} causes. `yes` means verified by the rule of `cftdiag check` (README, "What a check tells").',
        "",
        "| cause | kind | remedy | helps | times met | |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(reports()))
