"""Recompile reasons: one text of torch for each cache entry -> guard, source, expected and actual value, and
how close the entry came.

Seen on torch 2.13: ``0/1: tensor 'x' size mismatch at index 1. expected 5, actual 6``, ``0/0: self.layer_idx
== 0  # if self.layer_idx:  # b.py:7 in forward (HINT: ...)``, ``0/0: GLOBAL_STATE changed: grad_mode``,
``0/2: (x.size()[1] % 8) == 0  # (_inductor/ir.py:470 in is_aligned)``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from cftdiag.capture.torch_texts import frames
from cftdiag.events import Frame, Guard, Reason

_ENTRY = re.compile(r"^((?:!\d+/)?\d+/\d+|None): ", re.S)
_TENSOR = re.compile(
    r"^(?:tensor|Tensor) '(?P<name>.+?)' (?P<what>[\w ]+?) mismatch(?: at index (?P<index>\d+))?\. expected (?P<rest>.*)$",
    re.S,
)
_TYPE = re.compile(
    r"^expected type of '(?P<name>.+?)' to be a tensor type, .*but found (?P<actual>.*)$", re.S
)
_ABSENT = re.compile(r"^(?:KeyError on|IndexError on|getattr failed on source) (?P<source>.+)$", re.S)
_COMPARE = re.compile(r"^(?P<left>.+?) (?P<operator>==|is not|is|!=|<=|>=|<|>) (?P<right>.+)$", re.S)
_CHECK_ID = re.compile(
    r"^___check_(?P<what>type|obj)_id\((?P<source>.+), \d+\)(?:, type=(?P<type>.+))?$", re.S
)
_WHERE = re.compile(r"(\S+):(\d+) in (\S+)")

#: The order in which torch finds a tensor or a guard wrong, early to late. An entry whose first wrong
#: property comes late came close: everything
#: checked before held. Shape expressions are checked after all other guards.
ORDER = (
    "other",
    "type",
    "identity",
    "global_state",
    "dispatch_key",
    "dtype",
    "device",
    "requires_grad",
    "rank",
    "value",
    "size",
    "stride",
    "shape",
)
#: Stages at which an object is not of the kind that was compiled for.
_OTHER_KIND = frozenset({"other", "type", "identity"})

_PROPERTY = {
    "dispatch key set": "dispatch_key",
    "dtype": "dtype",
    "device": "device",
    "device index": "device",
    "requires_grad": "requires_grad",
    "rank": "rank",
    "size": "size",
    "stride": "stride",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """One entry's reason as read from text. ``stage`` is a member of :data:`ORDER`; ``stack`` the user frames
    that torch gave for the guard.
    """

    entry: str | None
    guard: Guard
    stage: str
    stack: tuple[Frame, ...] = ()


def split(payload: str | Sequence[str]) -> list[str]:
    """The reasons of a ``recompile_reasons`` payload, one text per entry, most recently used entry first."""
    if not isinstance(payload, str):
        return [str(item) for item in payload]
    if payload.startswith("["):
        try:
            return [str(item) for item in json.loads(payload)]
        except ValueError:
            pass
    return [payload] if payload.strip() else []


def parse(text: str) -> Miss:
    """Read one reason; an unknown form keeps its text as the guard's expression and gets the stage ``other``."""
    entry = None
    match = _ENTRY.match(text)
    if match:
        entry, text = match.group(1), text[match.end() :]
    text, _, stack_text = text.partition("\nUser stack trace:\n")
    expression, added, where = comment(text)
    guard, stage = read(expression)
    stack = frames(stack_text) or ((where,) if where else ())
    return Miss(
        entry=None if entry == "None" else entry,
        guard=dataclasses.replace(guard, added=added),
        stage=stage,
        stack=stack,
    )


def in_file(miss: Miss, file: str) -> Miss:
    """The same reason with the compiled file's name, which torch shortens in comments, written out."""
    stack = tuple(
        dataclasses.replace(f, file=file) if f.file and file.endswith(f.file) else f for f in miss.stack
    )
    place = _WHERE.match(miss.guard.added or "")
    if place is None or not file.endswith(place.group(1)):
        return dataclasses.replace(miss, stack=stack)
    added = file + (miss.guard.added or "")[place.end(1) :]
    return dataclasses.replace(miss, stack=stack, guard=dataclasses.replace(miss.guard, added=added))


def comment(text: str) -> tuple[str, str | None, Frame | None]:
    """Split ``expression  # source line  # file:line in function (file:line in function)``: (expression,
    added, user frame).
    """
    expression, _, rest = text.strip().partition("  # ")
    if not rest:
        expression, _, rest = text.strip().partition("# ")
    expression = expression.strip()
    if not rest:
        return expression, None, None
    rest = rest.partition(" (HINT: ")[0]
    # a range joins the places of its two ends; the last is the one that narrowed it
    rest = re.split(r"\) and (?=\S)", rest)[-1]
    inner = re.search(r"\(([^()]+:\d+ in [^()]+)\)\s*$", rest)
    user = rest[: inner.start()] if inner else rest
    code, _, place = user.rpartition("  # ")
    found = _WHERE.search(place or user)
    frame = (
        Frame(
            file=found.group(1), line=int(found.group(2)), function=found.group(3), code=code.strip() or None
        )
        if found
        else None
    )
    added = inner.group(1) if inner else (found.group(0) if found else None)
    return expression, added, frame


def read(expression: str) -> tuple[Guard, str]:
    """(guard, stage) of one guard expression, with the values that the text itself tells."""
    text = expression.strip()
    if text.startswith("GLOBAL_STATE changed:"):
        return Guard(expression=text, source=None), "global_state"
    tensor = _TENSOR.match(text)
    if tensor:
        return _tensor(text, tensor)
    kind = _TYPE.match(text)
    if kind:
        return Guard(
            expression=text,
            source=full_source(kind["name"]),
            expected="Tensor",
            actual=kind["actual"].strip(),
        ), "type"
    check = _CHECK_ID.match(text)
    if check:
        stage = "type" if check["what"] == "type" else "identity"
        return Guard(expression=text, source=full_source(check["source"]), expected=check["type"]), stage
    absent = _ABSENT.match(text)
    if absent:
        # nothing below a part that is not there is checked
        return Guard(
            expression=text, source=full_source(absent["source"]), expected="present", actual="absent"
        ), "type"
    compare = _COMPARE.match(text)
    if compare:
        return _compare(text, compare)
    return Guard(expression=text), "other"


def full_source(name: str) -> str:
    """``x`` -> ``L['x']``, ``self.fc`` -> ``L['self'].fc``: undo torch's shortening of local names."""
    if name.startswith(("L[", "G[", "len(", "torch.", "utils_device")) or (
        name.startswith("___") and not name.startswith("___stack")
    ):
        return name
    match = re.match(r"[A-Za-z_]\w*", name)
    return f"L[{match.group(0)!r}]{name[match.end() :]}" if match else name


def closest(misses: Sequence[tuple[int | None, str, bool]]) -> int | None:
    """Index of the entry that came closest, given (failing guards or None, stage, compiled by the same block)
    per entry, most recent first.

    Entries of another kind of object last, where this block has one of its own: they could never have served.
    Then the fewest failing guards; the latest stage; an entry that this block compiled itself; the most
    recent. With a count unknown for any entry (a recorded trace) counts are not compared.
    """
    if not misses:
        return None
    counted = all(count is not None for count, _, _ in misses)
    has_own = any(own for _, _, own in misses)

    def key(i: int) -> tuple[bool, int, int, bool, int]:
        count, stage, own = misses[i]
        foreign = has_own and not own and stage in _OTHER_KIND
        return foreign, (count or 0) if counted else 0, -ORDER.index(stage), not own, i

    return min(range(len(misses)), key=key)


def ranked(
    misses: Sequence[Miss], counts: Sequence[int | None], block: str | None, owners: Sequence[str | None]
) -> tuple[Reason, ...]:
    """All reasons of one recompile with the closest marked."""
    best = closest(
        [
            (count, miss.stage, owner is not None and owner == block)
            for miss, count, owner in zip(misses, counts, owners, strict=True)
        ]
    )
    return tuple(
        Reason(entry=miss.entry, guard=miss.guard, closest=i == best, failed=counts[i], block=owners[i])
        for i, miss in enumerate(misses)
    )


def _tensor(text: str, match: re.Match[str]) -> tuple[Guard, str]:
    stage = _PROPERTY.get(match["what"].strip(), "other")
    expected, _, actual = match["rest"].partition(", actual ")
    expected = expected.removeprefix("requires_grad=").strip()
    if stage == "requires_grad":
        expected = {"0": "False", "1": "True"}.get(expected, expected)
        actual = {"False": "True", "True": "False"}.get(expected, "")
    source = full_source(match["name"])
    if match["index"] is not None:
        source += f".{match['what'].strip()}()[{match['index']}]"
    return Guard(
        expression=text,
        source=source,
        expected=expected or None,
        actual=actual.strip() or None,
        value_type="Tensor",
    ), stage


def _compare(text: str, match: re.Match[str]) -> tuple[Guard, str]:
    left, right = match["left"].strip(), match["right"].strip()
    if (
        ".size()" in text
        or ".stride()" in text
        or ".storage_offset()" in text
        or match["operator"] not in ("==", "is")
    ):
        return Guard(expression=text, source=_first_source(text)), "shape"
    length = re.match(r"^len\((.+)\)$", left)
    return Guard(
        expression=text, source=full_source(length.group(1) if length else left), expected=right
    ), "value"


def _first_source(text: str) -> str | None:
    """The first Python source in an expression: ``x.size()[1]`` in ``(x.size()[1] % 8) == 0`` gives
    ``L['x'].size()[1]``.
    """
    match = re.search(
        r"(?:[LG]\['\w+'\]|[A-Za-z_]\w*)(?:\.\w+(?:\(\))?|\[[^\]]+\])*", text.replace("not ", "")
    )
    return full_source(match.group(0)) if match else None
