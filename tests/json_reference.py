"""Write the reference of the JSON documents from the types that make them: ``python -m tests.json_reference
docs/json.md``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from cftdiag import artifacts, cache_folder, details, events, findings, plan
from cftdiag.check.report import BlockResult, CheckReport
from cftdiag.compare import change
from cftdiag.gate import baseline

HEAD = """# JSON documents

Written from the types by `make docs`. Keys may be added to a document; none is taken away or given another meaning. Each document begins with
`schema`. Seconds are seconds, sizes bytes, times Unix seconds, unless a key says otherwise; None of a text below is null. What a command adds to its
document is in the page of that command: `cftdiag.run/1` ([monitor.md](monitor.md)), `cftdiag.bench/1` ([bench.md](bench.md)), `cftdiag.kernels/1`
([targets.md](targets.md)), `payoff` of a check ([payoff.md](payoff.md)), `script` and `coverage` of a command ([script.md](script.md)).
"""

#: Schema -> the type of its object, and where it is met.
DOCUMENTS: dict[str, tuple[type, str]] = {
    "cftdiag.check/1": (CheckReport, "`cftdiag check --json FILE`, `CheckReport.to_dict()`"),
    "cftdiag.finding/1": (findings.Finding, "`findings` of a check and of a run"),
    "cftdiag.event/1": (events.Event, "a line of `events/rankNNNNN.jsonl` in a run directory"),
    "cftdiag.plan/1": (plan.Plan, "`cftdiag check --data FILE --plan FILE`"),
    "cftdiag.diff/1": (change.Diff, "`cftdiag diff A B --json FILE`, `cftdiag upgrade --json FILE`"),
    "cftdiag.baseline/1": (baseline.Baseline, "`cftdiag check --write-baseline FILE`"),
    "cftdiag.cache/1": (cache_folder.Folder, "`cftdiag cache DIR --json`: an array of them"),
    "cftdiag.artifacts/1": (
        artifacts.Head,
        "the second line of a file of `cftdiag cache --pack` or `--compile-cache`",
    ),
}
#: Fields that are no part of the JSON, those that are spelled otherwise there, and keys that are no field.
LEFT_OUT = {(CheckReport, "plan"), (events.Guard, "condition"), (change.Diff, "inconclusive")}
SPELLED = {(BlockResult, "cls"): "class", (baseline.Baseline, "entries"): "findings"}
ADDED = {
    change.Diff: (
        ("same", "true or false", "True where nothing changed."),
        ("regressions", "object of integer", "Severity -> number of changes for the worse."),
    )
}

_PLAIN = {
    "str": "string", "int": "integer", "float": "number", "bool": "true or false", "None": "null", "Any": "anything",
    "object": "anything", "dict": "object",
}  # fmt: skip


def page() -> str:
    """The Markdown page."""
    lines, seen = [HEAD], set()
    for schema, (kind, where) in DOCUMENTS.items():
        lines += [f"## {schema}", "", f"{_sentence(kind)} Met in: {where}.", ""]
        lines += [_table(kind), ""]
        seen.add(kind)
        for inner in _inner(kind):
            if inner not in seen and inner not in {k for k, _ in DOCUMENTS.values()}:
                seen.add(inner)
                lines += [f"### {inner.__name__}", "", _sentence(inner), "", _table(inner), ""]
    return "\n".join(lines).rstrip() + "\n"


def keys(kind: type) -> list[str]:
    """Keys of a type's object, in its order."""
    return [name for name, _, _ in _fields(kind)]


def _inner(kind: type) -> Iterator[type]:
    """Types that the fields of a type name, each before those that it names itself."""
    for field in dataclasses.fields(kind):
        if (kind, field.name) in LEFT_OUT:
            continue
        for name in re.findall(r"\w+", str(field.type)):
            found = getattr(sys.modules[kind.__module__], name, None)
            if name == "Detail":
                for detail in details.OF_KIND.values():
                    yield detail
                    yield from _inner(detail)
            for made in (found, *get_args(found)):
                if isinstance(made, type) and dataclasses.is_dataclass(made):
                    yield made
                    yield from _inner(made)


def _table(kind: type) -> str:
    rows = [f"| `{name}` | {_cell(type_)} | {_cell(text)} |" for name, type_, text in _fields(kind)]
    return "\n".join(["| key | value | |", "|---|---|---|", *rows])


def _fields(kind: type) -> list[tuple[str, str, str]]:
    """(key, type in words, what it is) of each field."""
    texts = _texts(kind)
    renamed = getattr(kind, "RENAMED", {})
    fields = [
        (
            SPELLED.get((kind, field.name), renamed.get(field.name, field.name)),
            _type(str(field.type), kind),
            texts.get(field.name, ""),
        )
        for field in dataclasses.fields(kind)
        if (kind, field.name) not in LEFT_OUT
    ]
    return [*fields, *ADDED.get(kind, ())]


def _texts(kind: type) -> dict[str, str]:
    """Text below each field of a class and of those that it is made of."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(owner):
            continue
        [made] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(made, ast.ClassDef)
        for field, text in zip(made.body, made.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _type(text: str, kind: type) -> str:
    """An annotation in words."""
    parts = [part.strip() for part in _split(text, "|")]
    if len(parts) > 1:
        return " or ".join(_type(part, kind) for part in parts)
    head, bracket, rest = text.partition("[")
    inner = [part.strip() for part in _split(rest[:-1], ",")] if bracket else []
    if head == "tuple" and inner[-1:] == ["..."]:
        return f"array of {_type(inner[0], kind)}"
    if head == "tuple":
        return f"[{', '.join(_type(part, kind) for part in inner)}]"
    if head == "Mapping":
        return "object" if inner[1:] == ["Any"] else f"object of {_type(inner[1], kind)}"
    found = getattr(sys.modules[kind.__module__], head, None)
    if get_origin(found) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(found))
    if get_args(found):
        return " or ".join(_type(choice.__name__, kind) for choice in get_args(found))
    if isinstance(found, type) and issubclass(found, tuple):
        return f"[{', '.join(found._fields)}]"  # type: ignore[attr-defined]
    if head in _PLAIN:
        return _PLAIN[head]
    if head == "Detail":
        return "object by `kind`: " + ", ".join(
            f"`{event}`: [{detail.__name__}](#{detail.__name__.lower()})"
            for event, detail in details.OF_KIND.items()
        )
    schema = next((schema for schema, (made, _) in DOCUMENTS.items() if made.__name__ == head), None)
    anchor = head.lower() if schema is None else re.sub(r"[^\w]", "", schema)
    return f"[{schema or head}](#{anchor})"


def _split(text: str, mark: str) -> list[str]:
    """Parts of an annotation at a mark outside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if sign == mark and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _sentence(kind: type) -> str:
    """The text of a type, on one line."""
    return " ".join(_linked(inspect.getdoc(kind) or "").split())


def _cell(text: str) -> str:
    return _linked(text).replace("|", "\\|")


def _linked(text: str) -> str:
    """Marks of Sphinx as those of Markdown."""
    text = re.sub(r":\w+:`~?([^`]*)`", lambda m: f"`{m[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")


def main(path: str) -> None:
    Path(path).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
