"""The grammar of guards: torch's texts -> :class:`~cftdiag.conditions.Condition`. The only place that reads them.

Dynamo has two spellings. Leaf guards are Python (``self.step == 0``, ``len(l) == 1``) or a sentence (``tensor 'x'
size mismatch at index 1. expected 5, actual 6``, ``___check_type_id(f, 94159), type=<class 'm.A'>``); guards on
shapes are expressions over sizes (``(x.size()[1] % 8) == 0``). Behind them stands a comment with the user's line, its
file and torch's hints. The forms are those of ``torch/_dynamo/guards.py``, ``torch/csrc/dynamo/guards.cpp`` and
``torch/fx/experimental/symbolic_shapes.py`` of torch 2.11 to 2.14.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Mapping

from cftdiag.conditions import MISSING, Code, Condition, Kind, Term
from cftdiag.guard_expressions import expression

_LOCAL = re.compile(r"(?<!\w)L\[\s*(['\"])(\w+)\1\s*\]")
_WHERE = re.compile(r"(\S+):(\d+) in (\S+)")
_CLASS = re.compile(r"<class '(?P<name>[^']+)'>")

_MISMATCH = re.compile(
    r"^[Tt]ensor '(?P<source>.+?)' (?P<what>[\w ]+?) mismatch(?: at index (?P<index>\d+))?\. "
    r"[Ee]xpected (?:device index to be |requires_grad=)?(?P<expected>.*?)"
    r"(?:,? (?:actual|but got) (?P<actual>.*?))?(?:\. Guard failed on a parameter.*)?$",
    re.S,
)
_PROPERTY: Mapping[str, Kind] = {
    "dispatch key set": "dispatch",
    "dtype": "dtype",
    "device": "device",
    "device index": "device",
    "requires_grad": "requires_grad",
    "rank": "rank",
    "size": "size",
    "stride": "stride",
}
#: Kinds that torch tells in a sentence about a tensor.
TENSOR_KINDS = frozenset(_PROPERTY.values())
#: Up to torch 2.13 ``a tensor type``, then the class.
_TENSOR_TYPE = re.compile(
    r"^expected type of '(?P<source>.+?)' to be (?:a tensor type|<class '[^']+'>), .*?but found (?P<actual>.*)$",
    re.S,
)
_CHECK_ID = re.compile(
    r"^_{2,3}check_(?P<what>type_id|obj_id|fake_script_type)\((?P<source>.+), \d+\)(?:, type=(?P<type>.+))?$",
    re.S,
)
_ABSENT = re.compile(
    r"^(?:(?P<item>KeyError on|IndexError on)|getattr failed on source) (?P<source>.+)$", re.S
)
_MISSING_FROM_NONE = re.compile(r"'NoneType' object (?:has no attribute|is not subscriptable)")
_DUPLICATE = re.compile(r"uplicate tensor")
_STATE = (
    "GLOBAL_STATE changed",
    "___check_global_state()",
    "___check_torch_function_mode_stack()",
    "utils_device.CURRENT_DEVICE",
    "torch.autograd.forward_ad._current_level",
    "torch._functorch.pyfunctorch.compare_functorch_state",
    "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks",
)
_CHECK_TENSOR = re.compile(
    r"^check_tensor\((?P<source>.+?), (?:torch\.)?(?:\w+\.)*(?P<cls>\w+), DispatchKeySet\((?P<keys>.*?)\), "
    r"torch\.(?P<dtype>\w+), device=(?P<device>[^,]*), requires_grad=(?P<grad>\w+), "
    r"size=\[(?P<size>.*?)\], stride=\[(?P<stride>.*?)\]\)"
)


@functools.lru_cache(maxsize=8192)
def read(text: str) -> Condition:
    """Take one guard apart (without its comment); a form that is not known has the kind ``other``."""
    one_line = " ".join(local_names(text).split())
    return _sentence(one_line) or expression(one_line) or Condition(text=one_line)


def local_names(text: str) -> str:
    """``L['x'].size()`` -> ``x.size()``: torch itself shortens locals in most of its messages."""
    return _LOCAL.sub(r"\2", text)


def full_source(name: str) -> str:
    """``x`` -> ``L['x']``, ``self.fc`` -> ``L['self'].fc``: undo the shortening of local names."""
    if name.startswith(("L[", "G[", "len(", "torch.", "utils_device")) or (
        name.startswith("___") and not name.startswith("___stack")
    ):
        return name
    found = re.match(r"[A-Za-z_]\w*", name)
    if found is None:
        return name
    if name[found.end() : found.end() + 1] == "(":  # dict(type(s).__dict__)['k']
        return re.sub(r"\(([A-Za-z_]\w*)(?=[).])", r"(L['\1']", name, count=1)
    return f"L[{found[0]!r}]{name[found.end() :]}"


def written(condition: Condition) -> tuple[str | None, str | None, str | None]:
    """(source, expected, actual) as an event's JSON has them: torch's own source, and texts of the values."""
    if not condition.source:
        return None, None, None
    source = full_source(condition.source)
    if condition.terms and condition.terms[0].what != "value":
        term = condition.terms[0]
        source = f"{full_source(term.source)}.{term.what}()" + (
            "" if term.index is None else f"[{term.index}]"
        )
    if condition.kind == "tensor_type":
        return source, "Tensor", condition.value_type and f"<class '{condition.value_type}'>"
    if condition.absent:
        return source, "present", "absent"
    if condition.kind in ("type", "identity") and condition.knows("expected"):
        return source, f"<class '{condition.expected}'>", None
    if condition.stage == "shape":
        return source, None, None
    return source, _text(condition.expected), _text(condition.actual)


def _text(value: object) -> str | None:
    return None if value is MISSING else repr(value)


def literal(text: str | None) -> object:
    """The value that a text spells; the text itself for what is no literal (``torch.float32``); MISSING for None."""
    if text is None:
        return MISSING
    stripped = text.strip().rstrip(".")
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError):
        return Code(stripped)


# ---- sentences ----


def _sentence(text: str) -> Condition | None:
    if text.startswith(_STATE):
        return Condition(text=text, kind="state", key=_changed_state(text))
    if found := _MISMATCH.match(text):
        return _mismatch(text, found)
    if found := _TENSOR_TYPE.match(text):
        named = _CLASS.search(found["actual"])
        actual = named["name"] if named else found["actual"].strip()
        return Condition(text=text, kind="tensor_type", source=found["source"], value_type=actual)
    if found := _CHECK_ID.match(text):
        named = _CLASS.search(found["type"] or "")
        kind: Kind = "identity" if found["what"] == "obj_id" else "type"
        return Condition(
            text=text,
            kind=kind,
            source=found["source"],
            expected=named["name"] if named else literal(found["type"]),
        )
    if found := _ABSENT.match(text):
        # one kind of block or of argument has it, another has not
        return Condition(text=text, kind="contains", source=found["source"].strip(), absent=True)
    if tensor := tensor_check(text):
        return Condition(
            text=text, kind="tensor_type", source=local_names(tensor.source), expected=tensor.cls
        )
    if _MISSING_FROM_NONE.search(text):
        # an expression over the sizes of a tensor that is None now
        return Condition(text=text, kind="none", negated=True, actual=None, value_type="NoneType")
    if _DUPLICATE.search(text):
        named = re.search(r"'?([A-Za-z_][\w.\[\]'\"]*?)'? should not alias", text)
        named = named or re.search(r"found: \[[\"'](.+?)[\"'](?:, [\"']|\])", text)
        return Condition(text=text, kind="alias", source=named[1] if named else "", negated=True)
    if text.startswith("BACKEND_MATCH"):
        return Condition(text=text, kind="backend")
    return None


def _mismatch(text: str, found: re.Match[str]) -> Condition | None:
    kind = _PROPERTY.get(found["what"].strip())
    if kind is None:
        return None
    expected, actual = literal(found["expected"]), literal(found["actual"])
    if kind == "requires_grad" and expected in (0, 1):
        expected, actual = bool(expected), not expected
    index = int(found["index"]) if found["index"] else None
    source = found["source"]
    terms = (
        (Term(source=source, what="size" if kind == "size" else "stride", index=index),)
        if kind in ("size", "stride")
        else ()
    )
    return Condition(
        text=text, kind=kind, source=source, index=index, expected=expected, actual=actual, terms=terms
    )


def _changed_state(text: str) -> str:
    """``autocast(cpu)_enabled`` of ``GLOBAL_STATE changed: autocast(cpu)_enabled``; all names that torch gives."""
    found = re.search(r"changed: (.+)$", text)
    return " ".join(found[1].split()) if found else ""


# ---- whole guards of a cache entry ----


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorCheck:
    """All that a ``check_tensor(...)`` guard tests; None stands for a size or stride that is free."""

    source: str
    cls: str
    dtype: str
    device: str
    requires_grad: bool
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]


def tensor_check(text: str) -> TensorCheck | None:
    """Read a ``check_tensor(...)`` guard; None for any other guard."""
    found = _CHECK_TENSOR.match(text)
    if found is None:
        return None
    return TensorCheck(
        source=found["source"],
        cls=found["cls"],
        dtype=found["dtype"],
        device=found["device"],
        requires_grad=found["grad"] == "True",
        size=_numbers(found["size"]),
        stride=_numbers(found["stride"]),
    )


def _numbers(text: str) -> tuple[int | None, ...]:
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    return tuple(int(item) if item.lstrip("-").isdigit() else None for item in items)


def global_state(text: str) -> Mapping[str, object]:
    """What ``___check_global_state() against {...}`` was compiled for; empty for any other text."""
    head, _, told = text.partition("___check_global_state() against ")
    if head or not told:
        return {}
    try:
        found = json.loads(told.partition("  #")[0])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# ---- what stands behind a guard ----


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """``# code  # file:line in function (file:line in function)``: who made the guard.

    ``added`` is the innermost place (torch's own, where it is told); the rest is the user's line, whose path torch
    may have cut.
    """

    added: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None


def comment(text: str) -> tuple[str, Comment]:
    """Split a guard from the comment behind it."""
    guard, _, rest = text.strip().partition("  # ")
    if not rest:
        guard, _, rest = text.strip().partition("# ")
    guard = guard.strip()
    if not rest:
        return guard, Comment()
    rest = rest.partition(" (HINT: ")[0]
    # a range joins the places of its two ends; the last is the one that narrowed it
    rest = re.split(r"\) and (?=\S)", rest)[-1]
    inner = re.search(r"\(([^()]+:\d+ in [^()]+)\)\s*$", rest)
    user = rest[: inner.start()] if inner else rest
    code, _, place = user.rpartition("  # ")
    found = _WHERE.search(place or user)
    added = inner.group(1) if inner else (found.group(0) if found else None)
    if found is None:
        return guard, Comment(added=added)
    return guard, Comment(
        added=added, file=found[1], line=int(found[2]), function=found[3], code=code.strip() or None
    )


def with_file(added: str | None, file: str) -> str | None:
    """``added`` with the compiled file's name, which torch shortens in comments, written out."""
    place = _WHERE.match(added or "")
    if added is None or place is None or not file.endswith(place[1]):
        return added
    return file + added[place.end(1) :]


def inductor_place(added: str | None) -> str:
    """``_inductor/scheduler.py:123 in can_fuse`` for a guard that Inductor added, else an empty text."""
    return added if added is not None and re.match(r"(?:torch/)?_inductor/", added) else ""


# ---- sources ----

_PART = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]|\.(\w+)")


def parts(source: str, start: int = 0) -> list[str]:
    """``["layers", "2", "idx"]`` of ``L['self'].layers[2].idx`` from behind its root on (``start``)."""
    return [
        next(part for part in found.groups() if part is not None) for found in _PART.finditer(source, start)
    ]


def holders(source: str) -> list[str]:
    """Every part of a source that holds the next one, outermost first: ``a``, ``a.b`` of ``a.b['c']``."""
    try:
        node: ast.expr = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        return []
    found = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        found.append(ast.unparse(node))
    return [part for part in reversed(found) if part not in ("L", "G")]


def size_term(source: str) -> Term | None:
    """``x.size()[1]`` as what it names; None for anything else."""
    terms = read(f"{source} == 0").terms
    return terms[0] if terms and terms[0].what == "size" else None


def _global_name(name: str) -> str:
    """A global's own name; Dynamo's alias of an imported module is read back: ``__import_a_dot_b`` is ``a.b``."""
    module = name.removeprefix("__import_")
    return name if module == name else module.replace("_dot_", ".")


def pretty(source: str) -> str:
    """A source as the user wrote it: ``s._modules['d'].p`` becomes ``s.d.p``, ``G['Cfg'].scale`` ``Cfg.scale``."""
    source = re.sub(
        r"\._(?:modules|parameters|buffers)\[['\"]([^'\"]+)['\"]\]",
        lambda m: f"[{m[1]}]" if m[1].isdigit() else f".{m[1]}",
        source,
    )
    source = re.sub(r"\._modules$", "", source)  # the modules of a container
    source = re.sub(r"___from_numpy\((.+)\)$", r"\1", source)
    source = re.sub(r"^G\[['\"]([\w.]+)['\"]\]", lambda m: _global_name(m[1]), source)
    return re.sub(r"\bdict\(type\((\w+)\)\.__dict__\)\[['\"](\w+)['\"]\]", r"type(\1).\2", source)
