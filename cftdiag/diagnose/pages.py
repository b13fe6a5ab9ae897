"""The causes as documentation: ``python -m cftdiag.diagnose.pages docs/causes`` writes one page a cause and
an index.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from cftdiag.diagnose.engine.cause import Cause, fill
from cftdiag.diagnose.engine.registry import CAUSES, FAMILIES
from cftdiag.findings import Remedy

_MADE = "<!-- Made by `python -m cftdiag.diagnose.pages docs/causes`; change cftdiag/diagnose/texts, examples and the causes' remedies instead. -->\n"


def markdown(cause: Cause) -> str:
    """The page of one cause."""
    parts = [
        f"# `{cause.key}`: {cause.title}",
        f"Reported as: {', '.join(cause.kinds)}. `cftdiag explain {cause.key}` shows this page.",
        f"## What it is\n\n{cause.what}",
        f"## Why it costs\n\n{cause.why}",
    ]
    if cause.example:
        run = f"`{cause.seen_by}` on this file reports `{cause.key}`."
        parts.append(f"## An example\n\n{run}\n\n```python\n{cause.example.strip()}\n```")
    parts.append(f"## The fix\n\n{cause.fix}")
    parts.append("## Remedies, in order of preference\n\n" + "\n".join(_remedies(cause)))
    parts.append("## It stands on\n\n" + "\n".join(f"- <{url}>" for url in cause.references))
    return _MADE + "\n\n".join(parts) + "\n"


def _remedies(cause: Cause) -> list[str]:
    lines = []
    for i, remedy in enumerate(cause.remedies, 1):
        unsafe = " (unsafe)" if remedy.unsafe else ""
        change = f" The check tries: `{json.dumps(remedy.change)}`." if remedy.change is not None else ""
        lines.append(f"{i}. {_words(remedy)}{unsafe}{change}")
    return lines


def _words(remedy: Remedy) -> str:
    """The summary with placeholders in capitals: angle brackets would be HTML."""
    return re.sub(r"<(\w+)>", lambda m: m[1].upper(), fill(remedy, {}).summary)


def index() -> str:
    """The list of all causes by family."""
    lines = [
        _MADE + "# Causes",
        "",
        "Every finding names one of these. `cftdiag explain` lists them, `cftdiag explain CAUSE` shows one.",
        "",
    ]
    for family in FAMILIES:
        heading = " ".join((family.__doc__ or "").partition("\n\n")[0].split())
        lines += [f"## {heading}", ""]
        lines += [f"- [`{cause.key}`]({cause.key}.md): {cause.title}" for cause in family.CAUSES]
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    return {f"{key}.md": markdown(cause) for key, cause in CAUSES.items()} | {"README.md": index()}


def main(folder: str) -> None:
    """Write all pages; pages of causes that are no more are removed."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in out.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m cftdiag.diagnose.pages FOLDER")
    main(sys.argv[1])
