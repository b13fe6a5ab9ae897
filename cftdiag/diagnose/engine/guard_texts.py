"""Reading a guard: the text that Dynamo prints for a failed guard, taken apart without torch.

Dynamo has two spellings. Leaf guards are Python (``s.step == 0``, ``len(l) == 1``, ``___check_type_id(f,
94159)``) or a sentence about a tensor (``tensor 'x' size mismatch at index 1. expected 5, actual 6``); shape
guards are expressions over sizes (``(x.size()[1] % 8) == 0``). Behind them stands a comment with the user's
line, its file and torch's hints.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

from cftdiag.events import Frame, Guard

MISSING: Any = object()
"""Stands for a value that the guard does not tell."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A guard, taken apart.

    ``prop`` says what is guarded: ``value none identity type length keys contains attribute alias`` of a
    Python object, ``size stride rank dtype requires_grad dispatch tensor_type`` of a tensor, ``shape`` (an
    expression over sizes), ``state`` (global state) or ``other``.
    """

    text: str
    """The guard without its comment, one line, ``L['x']`` written ``x``."""
    comment: str = ""
    prop: str = "other"
    source: str = ""
    root: str = ""
    """First name of the source; ``G`` for a global."""
    path: str = ""
    """What follows the root (``.step``, ``['Cfg'].scale``)."""
    dim: int | None = None
    expected: Any = MISSING
    actual: Any = MISSING
    value_type: str | None = None
    """Type name of the value that was met, where known."""
    sizes: tuple[tuple[str, int], ...] = ()
    """(source, dimension) of each size in a shape expression."""

    def knows(self, name: str) -> bool:
        """True when ``expected`` or ``actual`` is known."""
        return getattr(self, name) is not MISSING


_COMMENT = re.compile(r"\s+#\s+")
_LOCAL = re.compile(r"\bL\[(['\"])(\w+)\1\]")
_SIZE = re.compile(r"([A-Za-z_][\w.]*(?:\[[^\]]*\][\w.]*?)*)\.size\(\)\[(\d+)\]")
_TENSOR = re.compile(
    r"tensor '(?P<source>.+?)' (?P<what>[\w ]+?) mismatch(?: at index (?P<dim>\d+))?\.?(?P<rest>.*)"
)
_TENSOR_TYPE = re.compile(
    r"expected type of '(?P<source>.+?)' to be a tensor type.*?but found (?P<found>.+)$"
)
_CLASS = re.compile(r"<class '(?P<name>[^']+)'>")
_CHECK = re.compile(r"___check_(?P<what>type_id|obj_id)\((?P<source>.+?), \d+\)")
_COMPARE = re.compile(r"^(?P<source>[A-Za-z_].*?) (?P<op>==|!=|is not|is) (?P<value>.+)$")
_PROPS = {
    "size": "size",
    "stride": "stride",
    "rank": "rank",
    "dtype": "dtype",
    "requires_grad": "requires_grad",
    "dispatch key set": "dispatch",
}
_CONTAINER = (
    (re.compile(r"^(?:not )?len\((?P<source>.+)\)(?: [!=]=|$)"), "length"),
    (re.compile(r"^list\((?:dict\.)?keys\((?P<source>.+?)\)\)"), "keys"),
    (re.compile(r"^(?:not )?(?:set|dict|frozenset)\.__contains__\((?P<source>.+), .+\)$"), "contains"),
    (re.compile(r"^(?:not )?.+ in (?P<source>[A-Za-z_][\w.\[\]'\"]*)$"), "contains"),
    (re.compile(r"^(?:not )?hasattr\((?P<source>.+), (?P<value>'\w+')\)$"), "attribute"),
    (re.compile(r"^not (?P<source>[A-Za-z_][\w.\[\]'\"]*)$"), "length"),
    # what torch says when a guarded part is not there at all: one kind of block has it, another has not
    (re.compile(r"^(?:KeyError|IndexError) on (?P<source>.+)$"), "contains"),
    (re.compile(r"^getattr failed on source (?P<source>.+)$"), "contains"),
)


def read(guard: Guard | None) -> View:
    """Take a guard apart; an unreadable one is a view with ``prop`` ``other``."""
    if guard is None:
        return View(text="")
    first = guard.expression.strip().split("\nUser stack trace")[0].replace("\n", " ")
    text, *rest = _COMMENT.split(_LOCAL.sub(r"\2", first), maxsplit=1)
    comment = " ".join([*rest, guard.added or ""]).strip()
    view = _parse(re.sub(r"^\d+/\d+(?:_\d+)?: ", "", text.strip()), comment)
    if guard.source and not view.source:
        view = dataclasses.replace(view, source=_LOCAL.sub(r"\2", guard.source))
    expected = view.expected if view.knows("expected") else _literal(guard.expected)
    actual = view.actual if view.knows("actual") else _literal(guard.actual)
    root, path = _split(view.source)
    return dataclasses.replace(
        view,
        expected=expected,
        actual=actual,
        root=root,
        path=path,
        value_type=view.value_type or guard.value_type,
    )


def _parse(text: str, comment: str) -> View:
    if (
        text.startswith("GLOBAL_STATE")
        or "___check_torch_function_mode_stack" in text
        or "___check_global_state" in text
    ):
        return View(text=text, comment=comment, prop="state")
    if found := _TENSOR_TYPE.search(text):
        named = _CLASS.search(found["found"])
        return View(
            text=text,
            comment=comment,
            prop="tensor_type",
            source=found["source"],
            value_type=named["name"] if named else None,
        )
    if (found := _TENSOR.search(text)) and found["what"] in _PROPS:
        return _tensor(text, comment, found)
    if sizes := tuple((m[1], int(m[2])) for m in _SIZE.finditer(text)):
        return View(
            text=text,
            comment=comment,
            prop="shape",
            source=sizes[0][0],
            dim=sizes[0][1],
            sizes=sizes,
            expected=_bound(text),
        )
    if re.search(r"\.(stride|storage_offset)\(\)", text):
        return View(
            text=text,
            comment=comment,
            prop="stride",
            source=text.split(".stride")[0].split(".storage")[0].split()[-1].lstrip("("),
        )
    if found := _CHECK.search(text):
        named = _CLASS.search(text)
        prop = "type" if found["what"] == "type_id" else "identity"
        return View(
            text=text,
            comment=comment,
            prop=prop,
            source=found["source"],
            expected=named["name"] if named else MISSING,
        )
    for pattern, prop in _CONTAINER:
        if found := pattern.search(text):
            tail = re.search(r"[!=]= (\d+)$", text)
            if prop == "attribute":
                source = f"{found['source']}.{found['value'].strip(chr(39))}"
                return View(text=text, comment=comment, prop=prop, source=source)
            return View(
                text=text,
                comment=comment,
                prop=prop,
                source=found["source"],
                expected=int(tail[1]) if tail else MISSING,
            )
    if "uplicate tensor" in text:
        return View(
            text=text,
            comment=comment,
            prop="alias",
            source=(re.search(r"'?([A-Za-z_][\w.\[\]'\"]*)'? should not alias", text) or [text, ""])[1],
        )
    if found := _COMPARE.search(text):
        return _comparison(text, comment, found)
    return View(text=text, comment=comment)


def _tensor(text: str, comment: str, found: re.Match[str]) -> View:
    values = re.search(
        r"expected (?:requires_grad=)?(.+?)(?:, actual (.+?))?(?:\. Guard failed.*)?$", found["rest"].strip()
    )
    expected = _literal(values[1]) if values else MISSING
    actual = _literal(values[2]) if values and values[2] else MISSING
    if found["what"] == "requires_grad" and expected in (0, 1):
        expected, actual = bool(expected), not expected
    dim = int(found["dim"]) if found["dim"] else None
    prop = _PROPS[found["what"]]
    return View(
        text=text,
        comment=comment,
        prop=prop,
        source=found["source"],
        dim=dim,
        expected=expected,
        actual=actual,
    )


def _comparison(text: str, comment: str, found: re.Match[str]) -> View:
    if found["op"] in ("is", "is not") and found["value"].strip() != "None":
        return View(text=text, comment=comment, prop="alias", source=found["source"])
    if found["value"].strip() == "None":
        expected = None if found["op"] in ("==", "is") else MISSING
        return View(text=text, comment=comment, prop="none", source=found["source"], expected=expected)
    return View(
        text=text, comment=comment, prop="value", source=found["source"], expected=_literal(found["value"])
    )


def _bound(text: str) -> Any:
    found = re.search(r"== (\d+)$", text)
    return int(found[1]) if found else MISSING


def _literal(text: str | None) -> Any:
    """The value that a text spells; the text itself for what is no literal (``torch.float32``); MISSING for
    None.
    """
    if text is None:
        return MISSING
    try:
        return ast.literal_eval(text.strip().rstrip("."))
    except (ValueError, SyntaxError):
        return text.strip().rstrip(".")


def _split(source: str) -> tuple[str, str]:
    inner = re.search(r"(?:type|dict|list|len)\((?:type\()?([A-Za-z_]\w*)", source)
    if inner:
        return inner[1], source
    found = re.match(r"[A-Za-z_]\w*", source)
    return (found[0], source[found.end() :]) if found else ("", source)


def pretty(source: str) -> str:
    """A source as the user wrote it: ``s._modules['d'].p`` becomes ``s.d.p``, ``G['Cfg'].scale`` becomes
    ``Cfg.scale``.
    """
    source = re.sub(
        r"\._(?:modules|parameters|buffers)\[['\"]([^'\"]+)['\"]\]",
        lambda m: f"[{m[1]}]" if m[1].isdigit() else f".{m[1]}",
        source,
    )
    source = re.sub(r"^G\[['\"]([\w.]+)['\"]\]", r"\1", source)
    return re.sub(r"\bdict\(type\((\w+)\)\.__dict__\)\[['\"](\w+)['\"]\]", r"type(\1).\2", source)


def user_frame(comment: str) -> Frame | None:
    """The user's line that a guard's comment names: ``code  # dir/file.py:12 in forward``; its path is
    relative to two directories.
    """
    found = re.search(
        r"(?:^|# )(?P<code>[^#]*?)\s*# (?P<file>\S+\.py):(?P<line>\d+) in (?P<function>[\w<>.]+)", comment
    )
    if found is None:
        return None
    return Frame(
        file=found["file"],
        line=int(found["line"]),
        function=found["function"],
        code=found["code"].strip() or None,
    )


def added_in(comment: str) -> str:
    """``_inductor/scheduler.py:123 in can_fuse`` of a shape guard, or an empty text."""
    found = re.findall(r"\(((?:_\w+|torch|fx)[\w/.]*\.py:\d+ in \w+)\)", comment) or re.findall(
        r"((?:torch/)?_inductor/[\w/]+\.py:\d+ (?:in )?\w+)", comment
    )
    return str(found[-1]) if found else ""
