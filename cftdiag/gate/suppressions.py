"""``# cftdiag: ignore[cause] reason``: a finding that is accepted where it is.

It stands behind the line of the finding, behind any other line of the same statement, or alone on the line
before. Several causes are divided by commas. Without a reason, or with a cause that does not exist, it does
nothing and is told.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_COMMENT = re.compile(r"#\s*cftdiag:\s*ignore\b(?P<rest>.*)")
_CAUSES = re.compile(r"\[(?P<causes>[^\]]*)\]\s*(?P<reason>.*)")

_OURS = Path(__file__).resolve().parents[1]
#: Modules of the project that are read for comments: a bound for trees that import everything.
_MOST_FILES = 500


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suppression:
    """One comment."""

    file: str
    line: int
    first: int
    """First line that it speaks of."""
    last: int
    causes: tuple[str, ...]
    reason: str
    problem: str | None = None
    """Why it does nothing."""

    def accepts(self, finding: Mapping[str, Any]) -> bool:
        """True for a finding of such a cause at its lines."""
        where = finding.get("where") or {}
        return (
            self.problem is None
            and finding.get("cause") in self.causes
            and isinstance(where.get("line"), int)
            and self.first <= where["line"] <= self.last
            and _same_file(str(where.get("file")), self.file)
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return {
            "file": self.file,
            "line": self.line,
            "causes": list(self.causes),
            "reason": self.reason,
            "problem": self.problem,
        }


def suppressions(path: str | Path, known: Collection[str] = ()) -> tuple[Suppression, ...]:
    """The comments of a file, in order; empty for a file that is no readable Python. ``known``: the causes that
    exist, where they are to be checked.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    if "cftdiag:" not in text:
        return ()
    try:
        tree, comments = ast.parse(text), list(_comments(text))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ()
    spans = _statements(tree)
    return tuple(_suppression(str(path), line, alone, match, spans, known) for line, alone, match in comments)


def _comments(text: str) -> Iterator[tuple[int, bool, re.Match[str]]]:
    """(line, whether nothing else is on it, match); what stands in a string is no comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (match := _COMMENT.match(token.string)):
            yield token.start[0], not token.line[: token.start[1]].strip(), match


def _suppression(
    file: str,
    line: int,
    alone: bool,
    match: re.Match[str],
    spans: list[tuple[int, int]],
    known: Collection[str],
) -> Suppression:
    within = any(start < line <= end for start, end in spans)
    target = (
        min((start for start, _ in spans if start > line), default=line) if alone and not within else line
    )
    inside = [(end - start, start, end) for start, end in spans if start <= target <= end]
    _, first, last = min(inside, default=(0, target, target))
    found = _CAUSES.match(match["rest"])
    causes = tuple(c.strip() for c in found["causes"].split(",") if c.strip()) if found else ()
    reason = found["reason"].strip(" -:") if found else ""
    return Suppression(
        file=file,
        line=line,
        first=first,
        last=last,
        causes=causes,
        reason=reason,
        problem=_problem(causes, reason, known),
    )


def _problem(causes: tuple[str, ...], reason: str, known: Collection[str]) -> str | None:
    if not causes:
        return "names no cause; write # cftdiag: ignore[cause] reason"
    for cause in causes:
        if known and cause not in known:
            close = difflib.get_close_matches(cause, known, n=1)
            return f"unknown cause {cause}" + (f"; did you mean {close[0]}?" if close else "")
    return None if reason else "gives no reason; write one behind the bracket"


def _statements(tree: ast.Module) -> list[tuple[int, int]]:
    """First and last line of each statement; of a compound one its head alone, decorators included."""
    spans = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        body = getattr(node, "body", None)
        end = node.end_lineno or node.lineno
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            end = max(node.lineno, min(end, body[0].lineno - 1))
            end = max([node.lineno, *(_ends(node))]) if end > node.lineno else end
        spans.append((start, end))
    return spans


def _ends(node: ast.stmt) -> Iterator[int]:
    """Last lines of the parts of a compound statement's head."""
    for name, value in ast.iter_fields(node):
        if name in ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from (end for n in ast.walk(part) if (end := getattr(n, "end_lineno", None)))


def _same_file(one: str, other: str) -> bool:
    a, b = Path(one), Path(other)
    return a.name == b.name and (a == b or a.absolute() == b.absolute() or a.resolve() == b.resolve())


def project_files(starts: Iterable[Path]) -> list[Path]:
    """The files given and the modules of the same project that they import, however deep; installed packages
    are left out, and so is this one from a checkout of its own.
    """
    todo = [path.resolve() for path in starts if path.is_file() and path.suffix == ".py"]
    roots = list(dict.fromkeys([*(path.parent for path in todo), Path.cwd()]))
    seen: dict[Path, None] = {}
    while todo and len(seen) < _MOST_FILES:
        path = todo.pop()
        if path in seen or {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(_OURS):
            continue
        seen[path] = None
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            continue
        for name, level in _imported(tree):
            for root in [path.parents[level - 1]] if level else roots:
                todo += _module(root, name)
    return list(seen)


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in _within(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield base, node.level
            yield from ((f"{base}.{alias.name}".strip("."), node.level) for alias in node.names)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module at any depth; the expressions, which are most of a tree, hold none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        part = getattr(node, name, ())
        for inner in part if isinstance(part, list) else ():
            yield inner
            yield from _within(inner)


def _module(root: Path, name: str) -> list[Path]:
    """Files of a module and of the packages that hold it."""
    parts = name.split(".") if name else []
    found = []
    for i in range(len(parts)):
        place = root.joinpath(*parts[: i + 1])
        found += [f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()]
    return [f.resolve() for f in found]
