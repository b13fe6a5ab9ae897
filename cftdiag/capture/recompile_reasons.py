"""Recompile reasons: one text of torch for each cache entry -> its guard, the user's line, and how close it came.

Seen on torch 2.13: ``0/1: tensor 'x' size mismatch at index 1. expected 5, actual 6``, ``0/0: self.layer_idx
== 0  # if self.layer_idx:  # b.py:7 in forward (HINT: ...)``, ``0/0: GLOBAL_STATE changed: grad_mode``,
``0/2: (x.size()[1] % 8) == 0  # (_inductor/ir.py:470 in is_aligned)``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from cftdiag import guards
from cftdiag.capture.torch_texts import frames
from cftdiag.conditions import STAGES
from cftdiag.events import Frame, Guard, Reason

_ENTRY = re.compile(r"^((?:!\d+/)?\d+/\d+|None): ", re.S)
#: Stages at which an object is not of the kind that was compiled for.
_OTHER_KIND = frozenset({"other", "type", "identity"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """One entry's reason as read from text; ``stack`` holds the user frames that torch gave for the guard."""

    entry: str | None
    guard: Guard
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
    """Read one reason; an unknown form keeps its text as the guard's expression."""
    entry = None
    match = _ENTRY.match(text)
    if match:
        entry, text = match.group(1), text[match.end() :]
    text, _, stack_text = text.partition("\nUser stack trace:\n")
    expression, comment = guards.comment(text)
    stack = frames(stack_text)
    if not stack and comment.file is not None:
        stack = (Frame(file=comment.file, line=comment.line, function=comment.function, code=comment.code),)
    return Miss(
        entry=None if entry == "None" else entry,
        guard=Guard.of(expression, comment.added),
        stack=stack,
    )


def in_file(miss: Miss, file: str) -> Miss:
    """The same reason with the compiled file's name, which torch shortens in comments, written out."""
    stack = tuple(
        dataclasses.replace(f, file=file) if f.file and file.endswith(f.file) else f for f in miss.stack
    )
    guard = dataclasses.replace(miss.guard, added=guards.with_file(miss.guard.added, file))
    return dataclasses.replace(miss, stack=stack, guard=guard)


def closest(misses: Sequence[tuple[int | None, str, bool]]) -> int | None:
    """Index of the entry that came closest, given (failing guards or None, stage, compiled by the same block)
    per entry, most recent first.

    Entries of another kind of object last, where this block has one of its own: they could never have served.
    Then the fewest failing guards; an entry that this block compiled itself, which tells what has changed since; the
    latest stage; the most recent. With a count unknown for any entry (a recorded trace) counts are not compared.
    """
    if not misses:
        return None
    counted = all(count is not None for count, _, _ in misses)
    has_own = any(own for _, _, own in misses)

    def key(i: int) -> tuple[bool, int, bool, int, bool, int]:
        count, stage, own = misses[i]
        foreign = has_own and not own and stage in _OTHER_KIND
        return foreign, (count or 0) if counted else 0, counted and not own, -STAGES.index(stage), not own, i

    return min(range(len(misses)), key=key)


def ranked(
    misses: Sequence[Miss], counts: Sequence[int | None], block: str | None, owners: Sequence[str | None]
) -> tuple[Reason, ...]:
    """All reasons of one recompile with the closest marked."""
    best = closest(
        [
            (count, miss.guard.condition.stage, owner is not None and owner == block)
            for miss, count, owner in zip(misses, counts, owners, strict=True)
        ]
    )
    return tuple(
        Reason(entry=miss.entry, guard=miss.guard, closest=i == best, failed=counts[i], block=owners[i])
        for i, miss in enumerate(misses)
    )
