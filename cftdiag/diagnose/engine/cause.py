"""A cause: what ``explain`` shows, what a finding quotes, and the remedies in order of preference.

Prose lives in ``texts/<key>.md``, the example in ``examples/<key>.py``; code holds what a finding needs.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cftdiag.findings import Remedy

TEXTS = Path(__file__).parents[1] / "causes" / "texts"
EXAMPLES = Path(__file__).parents[1] / "causes" / "examples"

#: The kinds of finding that a recompile cause may have.
RECOMPILES = ("recompile", "limit_hit")
BREAK = ("graph_break",)

#: How most examples are seen.
CHECK = "cftdiag check --model FILE.py:build"

#: Functions of an example that are fields of a Subject.
_FIELDS = ("step", "before_step", "wrap", "check")
_SECTIONS = ("What", "Why it costs", "Fix", "References")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One reason why compiled code breaks, is compiled again, or is wrong.

    ``remedies`` are templates: ``{argument}``, ``{dim}`` and the like are filled with the finding's own facts
    (:func:`fill`); unsafe ones come last.
    """

    key: str
    kinds: tuple[str, ...]
    title: str
    what: str
    why: str
    fix: str
    references: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    says: str = ""
    """One or two sentences of a finding, with ``{facts}``; the title and ``what`` stand in when a fact is
    unknown.
    """
    example: str = ""
    """Python source of a file with ``build()`` that shows the cause; empty where it takes a GPU, Inductor or
    several ranks.
    """
    seen_by: str = CHECK
    """The command that reports the cause on the example."""
    captured_by_fullgraph: bool = False
    """True for breaks that ``fullgraph=True`` usually captures, because it implies scalar and dynamic-shape
    capture.
    """

    def doc(self) -> str:
        """Path of the page of this cause in the documentation."""
        return f"docs/causes/{self.key}.md"


def cause(
    key: str,
    *,
    says: str,
    kinds: tuple[str, ...],
    remedies: tuple[Remedy, ...],
    captured_by_fullgraph: bool = False,
    seen_by: str = CHECK,
) -> Cause:
    """The cause of that key, with its page read from ``texts/`` and its example from ``examples/``."""
    title, sections = page(key)
    return Cause(
        key=key,
        kinds=kinds,
        title=title,
        what=sections["What"],
        why=sections["Why it costs"],
        fix=sections["Fix"],
        references=tuple(re.findall(r"<(https?://[^>]+)>", sections["References"])),
        remedies=remedies,
        says=says,
        example=example(key),
        seen_by=seen_by,
        captured_by_fullgraph=captured_by_fullgraph,
    )


def page(key: str) -> tuple[str, dict[str, str]]:
    """(title, text by section) of ``texts/<key>.md``; a page without one of the four sections is a fault of
    the package.
    """
    head, *parts = re.split(r"^## ", (TEXTS / f"{key}.md").read_text(encoding="utf-8"), flags=re.M)
    sections = {name.strip(): text.strip() for name, _, text in (part.partition("\n") for part in parts)}
    assert tuple(sections) == _SECTIONS, f"texts/{key}.md has sections {list(sections)}"
    return head.strip().removeprefix("# "), sections


def example(key: str) -> str:
    """Source of the example of a cause, as a check takes it; empty when it has none."""
    path = EXAMPLES / (key.replace(".", "_") + ".py")
    return as_subject(path.read_text(encoding="utf-8")) if path.exists() else ""


def as_subject(source: str) -> str:
    """An example whose ``build()`` returns a Subject with the functions of the file that are fields of one, and its COMPILE;
    a check reads nothing but what ``build()`` returns.
    """
    tree = ast.parse(source)
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    fields = [f"{name}={name}" for name in _FIELDS if name in defined]
    fields += ["compile_kwargs=COMPILE"] if "COMPILE" in named else []
    if not fields:
        return source
    match defined["build"].body:
        case [*_, ast.Return(value=ast.Tuple(elts=[model, batches])) as returned]:
            pass
        case _:
            raise AssertionError("the build() of an example returns (model, batches)")
    given = [
        f"model={ast.get_source_segment(source, model)}",
        f"batches={ast.get_source_segment(source, batches)}",
    ]
    given += fields
    lines = source.splitlines()
    first, last = returned.lineno, returned.end_lineno or returned.lineno
    lines[first - 1 : last] = [
        "    return Subject(",
        *(f"        {text},".replace("\n", "\n    ") for text in given),
        "    )",
    ]
    third_party = [
        n.lineno for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and _names_torch(n)
    ]
    at = next(
        (n.lineno for n in tree.body if isinstance(n, ast.ImportFrom) and _names_torch(n)),
        third_party[-1] + 1,
    )
    lines.insert(at - 1, "from cftdiag import Subject")
    return "\n".join(lines) + "\n"


def _names_torch(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.partition(".")[0] == "torch" for name in names)


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def fill(template: Remedy, facts: Mapping[str, Any]) -> Remedy:
    """The remedy with a finding's own names; its change is dropped (words remain) when a fact that it needs
    is unknown.
    """
    known = {k: v for k, v in facts.items() if v is not None}
    summary = template.summary.format_map(_Facts(known))
    change = _fill_value(dict(template.change), known) if template.change is not None else None
    return dataclasses.replace(template, summary=summary, change=None if change is _UNKNOWN else change)


def sentence(template: str, facts: Mapping[str, Any]) -> str | None:
    """A cause's sentence with a finding's facts. What is in brackets is left out where one of its facts is unknown;
    None where another one is.
    """
    known = {k: v for k, v in facts.items() if v is not None}
    whole = re.sub(r"\[([^\]]*)\]", lambda part: part[1] if needs(part[1]) <= set(known) else "", template)
    return whole.format(**known) if needs(whole) <= set(known) else None


def needs(template: str) -> set[str]:
    """Names of the facts that a text has a place for."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


_UNKNOWN: Any = object()


def _fill_value(value: Any, facts: Mapping[str, Any]) -> Any:
    """``value`` with its placeholders filled; a string that is one placeholder takes the fact's own type."""
    if isinstance(value, Mapping):
        filled = {_fill_value(k, facts): _fill_value(v, facts) for k, v in value.items()}
        return _UNKNOWN if any(k is _UNKNOWN or v is _UNKNOWN for k, v in filled.items()) else filled
    if isinstance(value, (list, tuple)):
        items = [_fill_value(v, facts) for v in value]
        return _UNKNOWN if any(v is _UNKNOWN for v in items) else items
    if not isinstance(value, str):
        return value
    fields = needs(value)
    if any(name not in facts for name in fields):
        return _UNKNOWN
    if len(fields) == 1 and value == "{" + min(fields) + "}":
        return facts[min(fields)]
    return value.format_map(facts)
