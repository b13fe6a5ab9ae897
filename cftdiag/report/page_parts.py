"""Parts of the HTML page that need more than a template: prose with code in it, lines of source, the timeline."""

from __future__ import annotations

import collections
import html
import json
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.escape import escaped
from cftdiag.report import wording

#: Lines of source before and after the one that a finding is about.
CONTEXT = 3
#: Rows of the table of compiles that stand in the page itself; a script shows the others.
ROWS = 200
#: Columns of the timeline, and lanes of ranks.
BINS = 160
LANES = 16

_CODE = re.compile(r"(`+)(.+?)\1", re.S)


def environment() -> Any:
    """What the pages are rendered with: every text is escaped, for HTML and for a terminal's control characters."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cftdiag.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,
    )
    made.filters["prose"] = prose
    made.filters["page_text"] = page_text
    return made


def highlighted(code: str, language: str) -> str:
    """Source text as HTML whose tokens have the classes of Pygments; ``language`` is one of its lexers' names."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    # line by line: escaping takes line ends for control characters
    plain = "\n".join(escaped(line) for line in code.expandtabs().split("\n"))
    return str(highlight(plain, get_lexer_by_name(language), HtmlFormatter(nowrap=True)))


def prose(text: Any) -> str:
    """Text with `` `code` `` as code; nothing else in it has a meaning."""
    parts: list[str] = []
    at = 0
    shown = str(text)
    for match in _CODE.finditer(shown):
        parts += [_safe(shown[at : match.start()]), f"<code>{_safe(match[2].strip())}</code>"]
        at = match.end()
    return "".join([*parts, _safe(shown[at:])])


def page_text(text: str) -> str:
    """The text of a cause's page: paragraphs, and code between fences."""
    parts = []
    # every odd piece stands between fences
    for i, piece in enumerate(re.split(r"^```\w*\n?", text.strip(), flags=re.M)):
        if i % 2:
            lines = "\n".join(_safe(line) for line in piece.strip("\n").split("\n"))
            parts.append(f"<pre>{lines}</pre>")
        else:
            parts += [f"<p>{prose(' '.join(p.split()))}</p>" for p in piece.split("\n\n") if p.strip()]
    return "".join(parts)


def _safe(text: str) -> str:
    return html.escape(escaped(text))


def source(where: Mapping[str, Any] | None) -> list[tuple[int, str, bool]]:
    """(number, line, whether it is the one) around the line of a finding; empty where the file is not here, is no
    Python, or has another line there by now.
    """
    place = where or {}
    file, line, code = place.get("file"), place.get("line"), place.get("code")
    if not file or not code or not isinstance(line, int) or Path(str(file)).suffix != ".py":
        return []
    lines = linecache.getlines(str(file))
    # a page is passed on: nothing but the code that was checked gets into it
    if not 0 < line <= len(lines) or lines[line - 1].strip() != str(code).strip():
        return []
    first = max(1, line - CONTEXT)
    shown = [(n, lines[n - 1].rstrip("\n")) for n in range(first, min(len(lines), line + CONTEXT) + 1)]
    margin = min((len(text) - len(text.lstrip()) for _, text in shown if text.strip()), default=0)
    return [(n, text[margin:], n == line) for n, text in shown]


def timeline(compiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lanes of the compiles by step, one a rank: each a label and bars of (x, width, height in percent of the lane,
    whether all are first compiles, words). Empty where one step has them all.
    """
    timed = [c for c in compiles if isinstance(c.get("step"), int)]
    steps = [c["step"] for c in timed]
    if not steps or min(steps) == max(steps):
        return []
    first, count = min(steps), max(steps) - min(steps) + 1
    width = max(1, -(-count // BINS))
    lanes: dict[int, dict[int, list[Mapping[str, Any]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for c in timed:
        lanes[min(c.get("rank") or 0, LANES - 1)][(c["step"] - first) // width].append(c)
    most = max(_seconds(cell) for bins in lanes.values() for cell in bins.values()) or 1.0
    columns = -(-count // width)
    ranks = len({c.get("rank") or 0 for c in timed})
    shown = []
    for lane, bins in sorted(lanes.items()):
        label = f"rank {lane}" + ("+" if lane == LANES - 1 and ranks > LANES else "")
        bars = []
        for at, cell in sorted(bins.items()):
            lo, hi = first + at * width, min(first + (at + 1) * width - 1, max(steps))
            causes = collections.Counter(str(c.get("cause") or "first") for c in cell)
            words = ", ".join(f"{n} x {cause}" for cause, n in causes.most_common(4))
            bars.append(
                {
                    "x": round(100 * at / columns, 3),
                    "width": round(max(100 / columns * 0.9, 0.3), 3),
                    "height": round(max(100 * _seconds(cell) / most, 8), 1),
                    "again": any(c.get("cause") for c in cell),
                    "words": f"step{'s' if hi > lo else ''} {wording.number_ranges(range(lo, hi + 1))}: {words}; {_seconds(cell):.1f} s",
                }
            )
        shown.append({"label": label if ranks > 1 else "", "bars": bars, "first": first, "last": max(steps)})
    return shown


def _seconds(cell: Iterable[Mapping[str, Any]]) -> float:
    return sum(float(c.get("seconds") or 0) for c in cell)


def by_cause(compiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recompiles by cause, the most seconds first, with the share of the worst."""
    groups: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for c in compiles:
        if c.get("cause"):
            groups[str(c["cause"])].append(c)
    rows = sorted(groups.items(), key=lambda item: (-_seconds(item[1]), -len(item[1])))
    most = max((_seconds(cell) for _, cell in rows), default=0) or 1.0
    return [
        {
            "cause": cause,
            "count": len(cell),
            "seconds": f"{_seconds(cell):.1f}",
            "share": round(100 * _seconds(cell) / most),
        }
        for cause, cell in rows
    ]


def embedded(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as JSON to stand inside a ``<script>`` element."""
    return json.dumps(rows, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
