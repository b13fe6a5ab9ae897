"""Errors, and what behaviour shows where torch emits no event: drafts from exceptions and from
``Context.probes``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from cftdiag.details import ErrorDetail
from cftdiag.diagnose.causes import errors
from cftdiag.diagnose.causes.performance import MANY_BLOCKS
from cftdiag.diagnose.engine import places
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.draft import Draft, Drafts, region
from cftdiag.diagnose.engine.probes import LateHook
from cftdiag.diagnose.wrong_code import ADVISORIES
from cftdiag.error_text import remedies, shorten
from cftdiag.events import RESUME, Event
from cftdiag.findings import Remedy, Where

#: Exceptions that have an event of their own kind: a break, or a limit hit.
_HAVE_EVENTS = (
    "Unsupported",
    "UserError",
    "GuardOnDataDependentSymNode",
    "UncapturedHigherOrderOpError",
    "FailOnRecompileLimitHit",
    "RecompileError",
)

#: Recompiles by a value that somebody set between a forward and its recomputation.
_SETTINGS = (
    "module_int_attr",
    "module_float_attr",
    "module_bool_attr",
    "module_str_attr",
    "class_attr",
    "global_value",
)

#: Raised by autograd in the training step, outside of any block: every compiled block is in that graph.
_OF_BACKWARD = ("donated_buffer", "double_backward", "unused_subclass_output")


def gather(events: Sequence[Event], context: Context, drafts: Drafts) -> None:
    """Draft errors, wrong numerics and performance findings."""
    refused = [e for e in context.fullgraph_breaks if e.kind == "error"]
    for event in (*events, *refused):
        if event in refused and _behind_break(event, context, drafts):
            continue
        if event.kind == "error":
            _error(event.failed, event, events, context, drafts)
        elif event.kind == "limit_hit":
            _other_thread(event, context, drafts)
    said = context.probes.captured_error
    if said is not None and not any(e.kind == "error" for e in events):
        _error(said, None, events, context, drafts)
    _hooks(events, context, drafts)
    _numerics(context, drafts)
    _wrong_code(context, drafts)
    _timeout(context, drafts)
    _depth(events, context, drafts)
    _saved_tensors(context, drafts)
    _ranks(events, drafts)
    _caches(events, drafts)
    _eager(context, drafts)


def _behind_break(event: Event, context: Context, drafts: Drafts) -> bool:
    """True for an error that only fullgraph=True meets, in blocks whose graph breaks: the run does not have it, so it
    is evidence of the breaks, which fullgraph refuses too.
    """
    said = event.failed
    if errors.classify(
        said.type, said.message, limit_hit=False, cast=False, create_graph=said.create_graph
    ) != ("fullgraph_error"):
        return False
    name = region(event)
    blocks = set(context.same_kind(name)) | {name}
    behind = [d for d in drafts.of("graph_break") if blocks & set(d.blocks)]
    for draft in behind:
        draft.severity = "error"
        first, _ = errors.told(said.message)
        draft.note(f"fullgraph=True refuses the block too: {said.type}: {shorten(first, 300)}")
    return bool(behind)


def _error(
    said: ErrorDetail,
    event: Event | None,
    events: Sequence[Event],
    context: Context,
    drafts: Drafts,
) -> None:
    """Draft an exception by what is ``said`` of it: type, message, and whether its backward was differentiated
    again.
    """
    kind, message = said.type, said.message
    if kind in _HAVE_EVENTS and (drafts.of("graph_break", "limit_hit", "recompile") or event is None):
        return
    limits = drafts.of("limit_hit")
    step = event.step if event is not None else None
    cast = any(
        d.cause == "dtype" or "autocast" in (d.guard or "") for d in drafts.of("recompile") if step in d.steps
    )
    cause = errors.classify(kind, message, limit_hit=bool(limits), cast=cast, create_graph=said.create_graph)
    if cause == "fullgraph_error" and _at_break(message, event, drafts):
        return
    draft, new = drafts.get("error", cause, "error")
    name = (region(event) if event is not None else None) or _of_graph(message, events)
    blocks = (
        list(context.same_kind(name))
        if name
        else [b.fqn for b in context.blocks]
        if cause.startswith("ac_") or cause in _OF_BACKWARD
        else []
    )
    if event is not None:
        draft.seen(event, blocks)
    elif new:
        draft.blocks, draft.count = blocks, 1
    if not new:
        return
    first, named = errors.told(message)
    advised = [sentence for sentence in remedies(message) if sentence not in " ".join(first.split())]
    words = shorten(first, 300)
    operator = errors.own_operator(message) if cause == "fullgraph_error" else None
    if cause == "fullgraph_error" and operator is None:  # the one whose remedy nobody but torch may know
        words = " ".join([words, *(s for s in advised if s not in words)])
    if cause == "fullgraph_error":
        draft.says, draft.remedies = errors.remedies_of(message)
    saved, again = errors.dtypes(message) or ("", "")
    limit = context.limit
    draft.where = (
        places.of(named) if named is not None else places.place(event) if event is not None else Where()
    )
    draft.facts = {
        "code": places.named(draft.where),
        "subclass": errors.subclass(message),
        "type": kind,
        "message": words,
        "expected": saved or None,
        "actual": again or None,
        "operator": operator,
        "limit_note": f": the recompile limit ({limit}) tripped in between" if limits else "",
        "more": 2 * limit,
    }
    if cause.startswith("ac_"):
        led = next(iter(limits), None) or _led_to(name, step, drafts)
        if led is not None:
            draft.note(f"raised at {places.named(draft.where)}" if draft.where.line else "")
            draft.guard = led.guard
            draft.where = led.where if led.where.line else draft.where
            if led.cause in _SETTINGS and not limits:
                draft.facts["attribute"] = led.facts.get("attribute")
    lines = [line.strip() for line in message.strip().splitlines()[1:8]]
    draft.note(
        f"{kind}: {shorten(first, 600)}",
        *advised,
        *(line for line in lines if len(line) > 1 and not any(" ".join(line.split()) in s for s in advised)),
    )
    draft.note(*(f"grew from {d.kind} {d.cause}: {d.guard}" for d in limits))


def _led_to(block: str | None, step: int | None, drafts: Drafts) -> Draft | None:
    """The recompile that a failed recomputation ran into: the last one at its step, in its block where that is known."""
    met = [d for d in drafts.of("recompile") if step is None or step in d.steps]
    return next(reversed([d for d in met if block in d.blocks] or met), None)


def _at_break(message: str, event: Event | None, drafts: Drafts) -> bool:
    """True for an error that the line of a graph break raises: what the break made two graphs of was one when it was run
    without torch.compile (a gradient taken inside of the block), so the error is evidence of the break.
    """
    first, named = errors.told(message)
    where = places.of(named) if named is not None else places.place(event) if event is not None else Where()
    at = [d for d in drafts.of("graph_break") if where.line and _place(d.where) == _place(where)]
    for draft in at:
        draft.severity = "error"
        draft.note(f"cut there, the step fails: {shorten(first, 300)}")
        draft.notes.append(f"Cut there, the step fails: {shorten(first, 120)}")
    return bool(at)


def _place(where: Where) -> tuple[str | None, int | None]:
    return where.file, where.line


def _of_graph(message: str, events: Sequence[Event]) -> str | None:
    """The block whose compiled graph the text names by its id (``compiled graph [0/0]``)."""
    found = re.search(r"compiled graph \[(\d+/\d+)\]", message)
    if found is None:
        return None
    return next((region(e) for e in events if e.kind == "compile" and e.compile_id == found[1]), None)


def _other_thread(event: Event, context: Context, drafts: Drafts) -> None:
    """A limit that is lower where it was hit than in the main thread."""
    # A hard failure (fullgraph) does not name the limit: then it is the number of entries that were there.
    hit = event.limited
    seen = hit.limit or len(event.reasons) or None
    main = context.probes.main_thread_limit or context.limit
    if seen is None or seen >= main or hit.limit_kind == "accumulated_recompile_limit":
        return
    draft, new = drafts.get("error", "limit_not_visible_in_thread", "error")
    draft.seen(event, context.same_kind(region(event)))
    if new:
        draft.where = places.place(event)
        draft.guard = f"recompile_limit {seen} in the worker thread, {main} in the main thread"
        draft.facts = {"limit": seen, "main_limit": f" ({main})", "more": 2 * main}
        where = f" in thread {hit.thread}" if hit.thread else ""
        draft.note(f"limit {seen} hit{where}; the main thread has {main}")


def _has_hook(events: Sequence[Event], hook: LateHook) -> bool:
    """True when the block's code was made with the hook: compiled from nothing at that step or later, as after
    ``torch._dynamo.reset()``, with no earlier entry to miss; or at its very first call.
    """
    missed = {(e.compile_id, e.step) for e in events if e.kind == "recompile"}
    return any(
        e.kind == "compile"
        and e.block == hook.block
        and e.step >= hook.step
        and e.region == "forward"
        and e.compiled.status == "ok"
        and ((e.compile_id, e.step) not in missed or (hook.without is not None and e.step == hook.step))
        for e in events
    )


def _when(hook: LateHook) -> str:
    if hook.without is None:
        return f"was registered at step {hook.step}, after the block was compiled"
    return f"is not on `{hook.without}`, which was compiled before and whose code serves this block, too"


def _hooks(events: Sequence[Event], context: Context, drafts: Drafts) -> None:
    for hook in context.probes.late_hooks:
        if _has_hook(events, hook):
            continue
        draft, new = drafts.get("error", "late_hook_ignored", "error", hook.hook, hook.kind)
        draft.blocks += [b for b in [hook.block] if b not in draft.blocks]
        draft.steps.append(hook.step)
        draft.count += 1
        draft.note(f"{hook.kind} hook {hook.hook} on {hook.module}, step {hook.step}")
        if new:
            draft.where = Where(
                file=hook.file, line=hook.line, function=hook.hook and hook.hook.rpartition(" ")[2]
            )
            draft.facts = {"hook": hook.hook, "module": hook.module, "when": _when(hook)}
    never = context.probes.never_run
    if never and not drafts.of("error"):
        draft, _ = drafts.get("error", "compiled_region_not_reached", "error")
        draft.blocks += never
        draft.count = len(never)
        draft.facts = {
            "blocks": ", ".join(context.shorten(never)),
            "why": "its compiled code was never called",
        }
        skipped = context.probes.skipped_frames
        by = {p.block: p.by for p in context.probes.passed_by}
        line = next((frame for frame in by.values() if frame is not None), None)
        if line is not None:
            draft.where = places.of(line)
            draft.facts["code"] = places.named(draft.where)
            draft.facts["why"] = (
                f"`{draft.facts['code']}` calls its forward, past what compiling it put into its call"
            )
            draft.remedies, draft.only_own = errors.FORWARD_CALLED, True
        elif all(name in by for name in never):
            draft.facts["why"] = "no step runs it"
            draft.remedies, draft.only_own = errors.NOT_RUN, True
        elif skipped:
            cls, file = skipped[0].cls, skipped[0].file
            draft.facts["skipped_class"] = cls
            draft.facts["why"] = f"Dynamo skips the frames of torch's own files, and {cls}.forward is in one"
            draft.note(f"{cls}.forward is in {file}, whose frames Dynamo skips")
        draft.note(f"{len(never)} to be compiled, 0 graphs")


def _numerics(context: Context, drafts: Drafts) -> None:
    found = context.probes.numerics
    if found is None or found.ok:
        return
    worst = found.worst
    draft, _ = drafts.get("numerics", "silent_wrong_numerics", "error")
    draft.blocks += [worst.block] if worst.block else [b.fqn for b in context.blocks]
    draft.count = max(len(found.failed), 1)
    config = ", ".join(f"{k}={v}" for k, v in found.config.items())
    draft.facts = {
        "name": worst.name,
        "eager": _figure(worst.eager),
        "compiled": _figure(worst.compiled),
        "rel": _figure(worst.rel),
        "config": f" with {config}" if config else "",
        "backend": found.backend,
    }
    draft.note(*(f"differs: {name}" for name in found.failed[:5]), f"backend {found.backend}")


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def _wrong_code(context: Context, drafts: Drafts) -> None:
    """Generated code with the pattern of a public bug, one finding a bug and line."""
    for found in context.probes.wrong_code:
        advisory = ADVISORIES[found.issue]
        draft, _ = drafts.get("numerics", "known_wrong_code", "error", found.issue, found.line)
        draft.where = found.line
        # blocks of one class share the code of the one that compiled it
        sharing = [fqn for fqn, ids in context.ran.items() if found.compile_id in ids]
        draft.blocks += [b for b in (found.block, *sharing) if b is not None and b not in draft.blocks]
        draft.count += 1
        versions = f"from {advisory.since} on" if advisory.fixed is None else f"before {advisory.fixed}"
        draft.facts = {
            "issue": advisory.issue,
            "pattern": advisory.pattern,
            "versions": versions,
            "fixed": advisory.fixed,
        }
        draft.remedies = (
            Remedy(
                summary=f"{advisory.workaround}.",
                change=advisory.change,
                applicability="by_hand" if advisory.change is None else "safe",
            ),
        )
        draft.only_own = advisory.fixed is None  # no version to take instead
        which = "backward" if found.backward else "forward"
        draft.note(f"{advisory.url}: {', '.join(found.buffers)} in the generated {which}")


def _timeout(context: Context, drafts: Drafts) -> None:
    """A pass that ran out of its time while it compiled: what takes minutes here takes minutes on every rank."""
    found = context.probes.timeout
    if found is None:
        return
    draft, _ = drafts.get("perf", "compile_time_depth", "warning")
    draft.blocks += [b.fqn for b in context.blocks]
    draft.count = 1
    draft.note(f"not compiled after {found.seconds:.0f} s, at step {found.step}: the pass was stopped there")


def _depth(events: Sequence[Event], context: Context, drafts: Drafts) -> None:
    """One graph over many equal blocks: a compile of the model itself."""
    kinds = Counter(b.kind for b in context.blocks)
    count = max(kinds.values(), default=0)
    if count < MANY_BLOCKS:
        return
    for event in events:
        whole = (
            event.kind == "compile"
            and event.region != "backward"
            and event.block == "<root>"
            and event.compiled.status == "ok"
        )
        ops = event.compiled.ops if whole else None
        if (
            not whole
            or (event.code is not None and RESUME in event.code.qualname)
            or (ops is not None and ops < 2 * count)
        ):
            continue
        draft, new = drafts.get("perf", "compile_time_depth", "warning")
        draft.seen(event, ["<root>"])
        if new:
            spent = event.seconds.get("total")
            draft.where = (
                Where(file=event.code.file, line=event.code.line, function=event.code.qualname)
                if event.code
                else Where()
            )
            draft.facts = {
                "count": count,
                "ops": f" ({ops} operations)" if ops else "",
                "seconds": f" (this one took {spent:.1f} s)" if spent else "",
            }
            draft.note(
                f"one graph of {ops} operations over {count} equal blocks"
                + (f", {spent:.1f} s to compile" if spent else "")
            )


def _saved_tensors(context: Context, drafts: Drafts) -> None:
    for hook in context.probes.saved_tensor_hooks:
        draft, new = drafts.get("perf", "saved_tensor_hooks_whole_graph", "warning")
        draft.count += 1
        draft.blocks += [b for b in [hook.block] if b not in draft.blocks]
        draft.note(f"{hook.block}: hook {hook.hook} was in force in {hook.calls} compiled calls")
        if new:
            draft.where = Where(
                file=hook.file, line=hook.line, function=hook.hook and hook.hook.rpartition(" ")[2]
            )
            draft.facts = {"hook": hook.hook}


def _ranks(events: Sequence[Event], drafts: Drafts) -> None:
    """Recompiles of one code at a step on some ranks only, among ranks that were at that step."""
    ranks = {e.rank for e in events}
    if len(ranks) < 2:
        return
    at: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "recompile" and event.code is not None:
            at[(f"{event.code.file}:{event.code.line}", event.step)].append(event)
    for (_, step), found in at.items():
        missing = ranks - {e.rank for e in found}
        if not missing:
            continue
        first = found[0]
        draft, new = drafts.get(
            "perf", "rank_divergent_recompile", "warning", first.code and first.code.qualname
        )
        draft.seen(first, [b for b in [region(first)] if b])
        draft.note(
            f"step {step}: ranks {sorted({e.rank for e in found})} recompiled, ranks {sorted(missing)} did not"
        )
        if new:
            draft.where = places.place(first)
            draft.guard = first.guard.expression if first.guard else None
            draft.facts = {
                "rank": first.rank,
                "code_name": first.code.qualname if first.code else "a frame",
                "step": step,
                "others": f"{len(missing)} other(s)",
            }


def _caches(events: Sequence[Event], drafts: Drafts) -> None:
    """Bypassed caches are information: they cost at the next start only. A skipped CUDA graph costs at each step."""
    for event in events:
        if event.kind == "cache" and event.cached.outcome == "bypass":
            said = event.cached.reason or ""
            draft, _ = drafts.get("perf", "cache_miss", "info", event.cached.cache)
            draft.seen(event, [b for b in [region(event)] if b])
            draft.facts = {
                "cache": event.cached.cache,
                "count": draft.count,
                "message": (said or "no reason given")[:200],
            }
            draft.note(said)
        if event.kind == "compile" and event.compiled.cudagraph_skip is not None:
            reason = " ".join(event.compiled.cudagraph_skip.split())
            draft, new = drafts.get("perf", "cudagraph_skip", "warning", reason)
            draft.seen(event, [b for b in [region(event)] if b])
            draft.facts = {"count": draft.count, "message": reason[:200]}
            draft.note(reason)
            if new:
                draft.where = places.place(event)


def _eager(context: Context, drafts: Drafts) -> None:
    """Blocks that were called and never ran a graph, when no break, limit or error says why."""
    if context.graphs is None or drafts.of("graph_break", "limit_hit", "error"):
        return
    calls = context.probes.calls
    idle = [
        b.fqn
        for b in context.blocks
        if not context.graphs.get(b.fqn) and (calls.get(b.fqn, 0) > 0 if calls or context.wrap else True)
    ]
    idle = [fqn for fqn in idle if fqn not in context.probes.never_run]
    if not idle or (context.wrap and not calls):
        return
    draft, _ = drafts.get("perf", "graph_runs_eager", "warning")
    draft.blocks, draft.count = idle, len(idle)
    draft.facts = {"blocks": ", ".join(context.shorten(idle))}
    draft.note(f"{len(idle)} of {len(context.blocks)} blocks ran 0 graphs")
