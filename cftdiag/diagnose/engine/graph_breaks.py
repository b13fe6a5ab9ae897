"""From graph breaks to drafts: what breaks, where, which blocks run that code, and whether ``fullgraph=True``
refuses it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cftdiag.details import BreakDetail
from cftdiag.diagnose.causes import break_on_call, break_on_value
from cftdiag.diagnose.engine import break_types, places, registry
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.draft import Draft, Drafts, region
from cftdiag.events import Event, Frame
from cftdiag.findings import Remedy

#: Breaks that make a Python number or list of a tensor: whether a branch follows is seen further down.
_ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
_READS = ("tensor.item", "tensor.tolist")
_LOGGING_FILE = re.compile(r"/logging(\.py|/)|/warnings\.py")
_EMPTY = re.compile(
    r"(This is not supported|Dynamo does not support this|Currently not supported|This is currently not supported)\.?"
)
_REASON = re.compile(r"\(reason: (.+?)\)\s*$")


def gather(events: Sequence[Event], context: Context, drafts: Drafts) -> None:
    """Draft every graph break, from both passes."""
    broken = [e for e in events if e.kind == "graph_break"]
    collected = [e for e in broken if not e.broke.fullgraph and not _only_follows(e, broken)]
    refused = [
        *(e for e in broken if e.broke.fullgraph),
        *(e for e in context.fullgraph_breaks if e.kind == "graph_break"),
    ]
    consumers = {id(r): c for r in refused if (c := _producer(r, collected, context)) is not None}
    for event in collected:
        same = [r for r in refused if _same_break(event, r, context)]
        feeds = [r for r in refused if consumers.get(id(r)) is event]
        _draft(event, same, feeds, context, drafts)
    for event in refused:
        if id(event) not in consumers and not any(_same_break(c, event, context) for c in collected):
            _draft(event, [event], [], context, drafts)


def _only_follows(event: Event, broken: list[Event]) -> bool:
    """True for what torch says about giving up a frame whose own break it has reported: it has no line, a line
    that broke already, or speaks of what was cut.
    """
    mechanism = break_types.of(event.broke.gb_type)
    if event.stack:
        if mechanism is not None and mechanism.follows:
            return any(_cuts(o, event) for o in broken)
        # A second, nameless break of the resumed line (a context manager that cannot be entered after its
        # call broke the graph).
        resumed = event.broke.resumed and registry.of_break(event) == "generic_break"
        return bool(resumed) and any(
            o is not event and not o.broke.resumed and _same_site(o, event) for o in broken
        )
    if len(broken) < 2:
        return False
    if event.broke.gb_id is None or (mechanism is not None and mechanism.name == "backend"):
        return True
    return any(o.stack and o.compile_id == event.compile_id for o in broken)


def _cuts(other: Event, event: Event) -> bool:
    """True when ``other`` is the break that cut the frame of ``event``: one of the same region that speaks for
    itself.
    """
    mechanism = break_types.of(other.broke.gb_type)
    return bool(other.stack) and region(other) == region(event) and not (mechanism and mechanism.follows)


def _draft(event: Event, same: list[Event], feeds: list[Event], context: Context, drafts: Drafts) -> None:
    cause = registry.of_break(event)
    if cause == "tensor.item" and (
        feeds or any(registry.of_break(r) == "data_dependent_branch" for r in same)
    ):
        cause = "data_dependent_branch"
    elif (
        cause == "data_dependent_branch"
        and event.broke.gb_type == _ITEM
        and not same
        and captured(event, context)
    ):
        cause = "tensor.item"
    frame = site(event, cause)
    severity = "error" if context.wrap or same or feeds or not _captured(event, cause, context) else "warning"
    draft, new = drafts.get("graph_break", cause, severity, frame and (frame.file, frame.line))
    if new:
        draft.where = places.of(frame) if frame is not None else places.place(event)
        draft.gb_id = event.broke.gb_id
        draft.facts = _facts(event, cause, frame, feeds)
        draft.says, draft.remedies = _own_words(event, cause)
        draft.only_own = _enough(cause, draft.remedies)
        draft.note(*_evidence(event))
        draft.note(
            *(
                f"feeds a branch that fullgraph=True refuses: {places.show(f)}"
                for r in feeds
                if (f := places.site(r))
            )
        )
        draft.note(
            "fullgraph=True refuses it too"
            if same or feeds
            else "fullgraph=True captures it"
            if captured(event, context)
            else ""
        )
    draft.seen(event, sharing(event, context))


def _own_words(event: Event, cause: str) -> tuple[str | None, tuple[Remedy, ...]]:
    """(sentence, remedies) of the break's own mechanism, which its cause does not have; in a region that cannot
    be split (a checkpoint, an autograd.Function) all remedies of what breaks there.
    """
    mechanism = break_types.of(event.broke.gb_type)
    own = mechanism.remedies if mechanism is not None else ()
    if mechanism is not None and mechanism.cause == cause:
        nameless = cause == "unsupported_call" and break_on_call.callee(event) is None
        return mechanism.says or (registry.CAUSES["generic_break"].says if nameless else None), own
    inner = registry.of_break_itself(event)
    if cause not in registry.REGIONS or inner in (cause, "generic_break") or _enough(inner, own):
        return None, own
    return None, (*own, *registry.CAUSES[inner].remedies)


def _enough(cause: str, own: tuple[Remedy, ...]) -> bool:
    """True when the mechanism's remedies stand for those of its cause, which know nothing of what was called."""
    return cause == "unsupported_call" and bool(own)


def sharing(event: Event, context: Context) -> list[str]:
    """The blocks that run the code of an event: all of the kind, but those that were captured whole."""
    name = region(event)
    block = context.block(name)
    if block is None:
        return [name] if name else []
    found = []
    graphs = context.graphs or {}
    for fqn in context.same_kind(name):
        # One graph where the reporting block ran another number: this one was captured whole.
        ran = graphs.get(fqn) != 1 or graphs.get(block.fqn) == 1
        whole = context.fullgraph.get(fqn) == context.fullgraph.get(block.fqn)
        if fqn == block.fqn or (ran and whole):
            found.append(fqn)
    return found


def captured(event: Event, context: Context) -> bool:
    """True when the fullgraph pass captured the blocks of this event."""
    return any(context.fullgraph.get(fqn) for fqn in sharing(event, context))


def _captured(event: Event, cause: str, context: Context) -> bool:
    """Whether fullgraph captures this break; when another break stopped that pass before, by what is known of
    the cause.
    """
    known = [context.fullgraph.get(fqn) for fqn in sharing(event, context)]
    if any(known):
        return True
    return registry.CAUSES[cause].captured_by_fullgraph


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


def _same_site(one: Event, other: Event) -> bool:
    a, b = places.site(one), places.site(other)
    return a is not None and b is not None and (a.file, a.line) == (b.file, b.line)


def _same_break(collected: Event, refused: Event, context: Context) -> bool:
    """True when both passes met one break: at one line, or, where torch names no line, of one cause in one kind
    of block.
    """
    if collected.stack and refused.stack:
        return _same_site(collected, refused)
    one, other = region(collected), region(refused)
    return registry.of_break(collected) == registry.of_break(refused) and (
        one == other or other in context.same_kind(one)
    )


def _producer(refused: Event, collected: list[Event], context: Context) -> Event | None:
    """The break that made the number on which a refused branch depends: the nearest one above it in its
    function, else the last of its block.
    """
    if registry.of_break(refused) != "data_dependent_branch" or any(
        _same_site(refused, c) for c in collected
    ):
        return None
    place = places.site(refused)
    kind = context.same_kind(refused.block)
    reads = [
        c
        for c in collected
        if registry.of_break(c) in _READS
        and (not kind or not c.block or c.block in kind or context.block(c.block) is None)
    ]
    near: list[tuple[int, Event]] = []
    for event in reads:
        frame = places.site(event)
        if (
            place
            and frame
            and frame.file == place.file
            and (frame.line or 0) <= (place.line or 0)
            and places.function(frame) == places.function(place)
        ):
            near.append((frame.line or 0, event))
    if near:
        return max(near, key=lambda pair: pair[0])[1]
    return reads[-1] if reads else None


def _facts(event: Event, cause: str, frame: Frame | None, feeds: list[Event]) -> dict[str, Any]:
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
    explained = " ".join((detail.explanation or "").split())
    if not explained or _EMPTY.fullmatch(explained):
        return gb_type.rstrip(".") + "."
    return f"{gb_type.rstrip('.')}. {explained[:400].rstrip('.')}."


def _hint(detail: BreakDetail) -> str | None:
    """What torch advises, where the table has no remedy and torch's hints say what to do."""
    mechanism = break_types.of(detail.gb_type)
    if mechanism is not None and (mechanism.remedies or not mechanism.hints):
        return None
    return " ".join(a.rstrip(".") + "." for a in break_types.actions(detail.hints or ())) or None


def _evidence(event: Event) -> list[str]:
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


def add_consequences(drafts: Drafts, lost: Sequence[tuple[Event, str]]) -> list[Draft]:
    """Attach recompiles of resumed functions to the break that made their values; returns the breaks that
    took one.
    """
    taken = []
    breaks = drafts.of("graph_break")
    for event, text in lost:
        file = event.code.file if event.code else None
        line = _resumed_at(event)
        near = (
            [d for d in breaks if d.where.file == file and d.where.line == line]
            or [d for d in breaks if d.where.file == file]
            or breaks
        )
        if near:
            near[0].note(f"recompiles what follows the break: {text}")
            taken.append(near[0])
    return taken


def absorb_recompiles(drafts: Drafts, context: Context) -> None:
    """Take recompiles by ``requires_grad`` into a break on it in the same kind of block: both come from a first
    block whose input does not require grad, and end together.
    """
    for draft in drafts.of("graph_break"):
        if draft.cause != "requires_grad_in_graph":
            continue
        kind = {name for block in draft.blocks for name in context.same_kind(block)}
        for other in drafts.of("recompile"):
            if other.cause == "requires_grad" and kind & set(other.blocks):
                draft.note(f"compiles {', '.join(context.shorten(other.blocks))} again: {other.guard}")
                drafts.drop(other)


def _resumed_at(event: Event) -> int | None:
    found = re.search(r"_at_(\d+)", event.code.qualname) if event.code else None
    return int(found[1]) if found else None
