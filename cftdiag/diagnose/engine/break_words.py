"""What a finding says of a graph break: its line, its sentence and remedies, its facts and its evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cftdiag.details import BreakDetail
from cftdiag.diagnose.causes import break_in_region, break_on_call, break_on_value
from cftdiag.diagnose.engine import break_types, places, registry
from cftdiag.events import Event, Frame
from cftdiag.findings import Remedy

_LOGGING_FILE = re.compile(r"/logging(\.py|/)|/warnings\.py")
_EMPTY = re.compile(
    r"(This is not supported|Dynamo does not support this|Currently not supported|This is currently not supported)\.?"
)
_REASON = re.compile(r"\(reason: (.+?)\)\s*$")


def site(event: Event, cause: str) -> Frame | None:
    """The line to show. What breaks in the backward of an autograd.Function runs nowhere in the compiled
    function: there the line that applies it; and the line that logs, not a library's helper that does it.
    """
    _, inside = places.split(event)
    frame = places.site(event)
    if cause == "autograd_function" and frame is not None and frame.function == "backward":
        return _applied(inside) or frame
    if cause == "logging_call":
        own = [f for f in inside if places.rank(f) == 0 or not _LOGGING_FILE.search(f.file or "")]
        return places.innermost(own) or frame
    return frame


def _applied(inside: Sequence[Frame]) -> Frame | None:
    """The line that calls ``apply`` of an autograd.Function."""
    found = [f for f in inside if re.search(r"\.apply\(", f.code or "") and places.rank(f) < 2]
    return found[-1] if found else None


def own(event: Event, cause: str) -> tuple[str | None, tuple[Remedy, ...]]:
    """(sentence, remedies) of the break's own mechanism, which its cause does not have; in a region that cannot
    be split (a checkpoint, an autograd.Function) all remedies of what breaks there.
    """
    if cause == "requires_grad_in_graph" and not break_in_region.in_hook(event):
        return None, break_on_call.BY_FORWARD
    if cause == "data_dependent_branch" and _asserts(event):
        return break_on_value.ASSERTION_SAYS, break_on_value.ASSERTION
    mechanism = break_types.of(event.broke.gb_type)
    remedies = mechanism.remedies if mechanism is not None else ()
    if mechanism is not None and mechanism.cause == cause:
        nameless = cause == "unsupported_call" and break_on_call.callee(event) is None
        return mechanism.says or (registry.CAUSES["generic_break"].says if nameless else None), remedies
    inner = registry.of_break_itself(event)
    if cause not in registry.REGIONS or inner in (cause, "generic_break") or enough(inner, remedies):
        return None, remedies
    return None, (*remedies, *registry.CAUSES[inner].remedies)


def _asserts(event: Event) -> bool:
    """True for a line that asserts: torch makes a check in the graph of one with a constant message."""
    frame = places.site(event)
    return frame is not None and bool(re.match(r"assert\b", frame.code or ""))


def enough(cause: str, own: tuple[Remedy, ...]) -> bool:
    """True when the mechanism's remedies stand for those of its cause, which know nothing of what was called."""
    return (cause == "unsupported_call" and bool(own)) or own in (
        break_on_call.BY_FORWARD,
        break_on_value.ASSERTION,
    )


def facts(event: Event, cause: str, frame: Frame | None, feeds: list[Event]) -> dict[str, Any]:
    """What the sentences of a cause may name; None where torch does not say it."""
    detail = event.broke
    last = places.site(event)
    reason = _REASON.search(detail.explanation or "")
    branch = places.site(feeds[0]) if feeds else None
    name = break_on_call.callee(event)
    inner = str(detail.gb_type or "a graph break")
    applied = _applied(places.split(event)[1])
    return {
        "code": places.named(places.of(frame) if frame is not None else places.place(event)),
        "line": frame.line if frame else None,
        "branch": f" It is used at `{branch.code}`." if branch else "",
        "function": f"`{name}`" if name else "a function",
        "callee": f" (`{name}`)" if name else "",
        "callee_name": f"`{name}`" if name else None,
        "reason": f" ({reason[1]})" if reason and reason[1] != "None" else "",
        "logging_function": break_on_call.logging_function(event),
        "reordered_function": break_on_call.reordered_function(event),
        "printer": break_on_call.printer(event),
        "said": _said(detail),
        "hint": _hint(detail),
        "applied": (applied.code if applied is not None else None)
        or (frame.code if frame is not None else None),
        "inner": f"{inner} at `{last.code}`"
        if last is not None and last.code and cause == "autograd_function"
        else inner,
    }


def _said(detail: BreakDetail) -> str:
    """Torch's own words: the type of the break and, where it says more, the explanation."""
    gb_type = str(detail.gb_type or detail.reason or "a graph break").strip().splitlines()[0]
    explained = re.sub(r"\s*Message: None\b\.?", "", " ".join((detail.explanation or "").split()))
    if not explained or _EMPTY.fullmatch(explained):
        return gb_type.rstrip(".") + "."
    return f"{gb_type.rstrip('.')}. {explained[:400].rstrip('.')}."


def _hint(detail: BreakDetail) -> str | None:
    """What torch advises, where the table has no remedy and torch's hints say what to do."""
    mechanism = break_types.of(detail.gb_type)
    if mechanism is not None and (mechanism.remedies or not mechanism.hints):
        return None
    return " ".join(a.rstrip(".") + "." for a in break_types.actions(detail.hints or ())) or None


def evidence(event: Event) -> list[str]:
    """Torch's type of break, the lines inside the compiled frame from the innermost outwards, and its caller."""
    detail = event.broke
    gb = f"{detail.gb_id}: " if detail.gb_id else ""
    said = str(detail.reason or detail.gb_type or "").strip().splitlines()
    lines = [f"torch: {gb}{said[0] if said else ''}"]
    callers, inside = places.split(event)
    known = [f for f in inside if places.rank(f) < 2]
    lines += [places.show(f) for f in reversed(known[-3:])]
    if callers and (caller := places.caller(event)) is not None:
        lines.append(f"called from {places.show(caller)}")
    lines += re.findall(r"Caused by: .*", break_on_value.text(event))[:1]
    return lines
