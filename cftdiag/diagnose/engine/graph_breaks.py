"""From graph breaks to drafts: what breaks, where, which blocks run that code, and whether ``fullgraph=True``
refuses it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cftdiag.diagnose.engine import break_types, break_words, places, registry
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.draft import Draft, Drafts, region
from cftdiag.events import Event

_ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
#: Breaks that make a Python number or list of a tensor: whether a branch follows is seen further down.
_READS = ("tensor.item", "tensor.tolist")
_BY_TORCH = "torch itself breaks the graph around a compiled optimizer.step; the step proper is one graph between the breaks."


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
    frame = break_words.site(event, cause)
    harmless = _captured(event, cause, context) and not _left_nothing(event, context)
    severity = "error" if context.wrap or same or feeds or not harmless else "warning"
    by_torch = _around_an_optimizer(event)
    if by_torch:
        severity = "info"
    draft, new = drafts.get("graph_break", cause, severity, frame and (frame.file, frame.line))
    if new:
        draft.where = places.of(frame) if frame is not None else places.place(event)
        draft.gb_id = event.broke.gb_id
        draft.facts = break_words.facts(event, cause, frame, feeds)
        draft.says, draft.remedies = break_words.own(event, cause)
        draft.only_own = break_words.enough(cause, draft.remedies)
        if by_torch:
            draft.says, draft.remedies, draft.only_own = _BY_TORCH, (), True
        draft.note(*break_words.evidence(event))
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


def _around_an_optimizer(event: Event) -> bool:
    """True for the breaks that torch itself puts around a compiled ``optimizer.step``: nobody can mend them, and
    the step proper is compiled whole between them.
    """
    file = event.code.file if event.code else ""
    by_wrapper = "/torch/_dynamo/external_utils" in file and "module: torch.optim." in (
        event.broke.context or ""
    )
    return by_wrapper or "/torch/optim/" in file


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


def _left_nothing(event: Event, context: Context) -> bool:
    """True when a block of the break came to no graph at all as it is compiled now: all of it runs eager."""
    graphs = context.graphs or {}
    return any(graphs.get(fqn) == 0 for fqn in sharing(event, context))


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
