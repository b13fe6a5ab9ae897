"""From what passes observed to findings: the context of a diagnosis, and the diagnosis itself. Pure and
torch-free.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

from cftdiag.check import data_forecast
from cftdiag.check.data_forecast import Swept
from cftdiag.check.outcome import Outcome, compiled
from cftdiag.check.runner import BuiltPass, PassResult
from cftdiag.details import ErrorDetail
from cftdiag.diagnose import Block, Context, Probes, diagnose
from cftdiag.diagnose.engine.probes import Numerics, SkippedFrame, Timeout
from cftdiag.events import Event
from cftdiag.findings import Finding
from cftdiag.options import CheckOptions
from cftdiag.passes.messages import NeverRan

UNEVEN = "met when one expert is idle and one gets a single token"


def make_context(
    main: BuiltPass,
    options: CheckOptions,
    *,
    whole: PassResult | None = None,
    numerics: Numerics | None = None,
    captures_all: bool = False,
) -> Context:
    """What the diagnosis knows beside the events of ``main``. ``captures_all``: no fullgraph pass was needed
    to know that every block is captured whole.
    """
    program = main.program
    captured: dict[str, bool | None] = dict.fromkeys((b.fqn for b in program.blocks), captures_all or None)
    if whole is not None and whole.result is not None:
        captured |= whole.result.fullgraph
    return Context(
        blocks=tuple(
            Block(fqn=b.fqn, cls=b.cls, kind=b.kind or b.cls, index=b.index) for b in program.blocks
        ),
        lengths=tuple(s.length for s in program.steps),
        batch_sizes=tuple(s.batch_size for s in program.steps),
        graphs=None if options.compile.scope == "none" else _graph_counts(main),
        ran=main.graphs,
        fullgraph=captured,
        fullgraph_breaks=tuple(e for e in whole.events if e.kind in ("graph_break", "error"))
        if whole is not None and whole is not main
        else (),
        wrap=program.wrap,
        ac=options.compile.ac,
        scope=options.compile.scope,
        depth=program.depth,
        limit=program.limit or Context.limit,
        compile_kwargs=program.compile_kwargs,
        settings=program.settings,
        probes=_probes(main, options, numerics),
    )


def _probes(main: BuiltPass, options: CheckOptions, numerics: Numerics | None) -> Probes:
    """What the passes found by watching."""
    program, result, raised, last = main.program, main.result, main.raised, main.last
    never: list[str] = []
    silent: list[NeverRan] = []
    if main.ended and options.compile.scope != "none":
        by_block = not program.wrap and options.compile.scope in ("block", "block+loss")
        never = [b.fqn for b in program.blocks if by_block and not main.calls.get(b.fqn)]
        silent = list({n.name: n for n in (() if result is None else result.never_ran)}.values())
    stopped = main.outcome == "timeout" and last is not None and last.phase == "step"
    return Probes(
        late_hooks=() if result is None else result.late_hooks,
        saved_tensor_hooks=() if result is None else result.saved_tensor_hooks,
        passed_by=() if result is None else result.passed_by,
        main_thread_limit=program.limit,
        calls={} if options.compile.scope == "none" else dict(main.calls),
        numerics=numerics,
        wrong_code=() if result is None else result.wrong_code,
        captured_error=None if raised is None else ErrorDetail(type=raised.error, message=raised.message),
        # what was called and came to no graph runs eager; torch's own files tell why
        never_run=tuple(
            dict.fromkeys((*never, *(n.name for n in silent if n.skipped_file or not main.calls.get(n.name))))
        ),
        # only what was called can have been skipped
        skipped_frames=tuple(
            SkippedFrame(block=n.name, cls=n.cls, file=n.skipped_file)
            for n in silent
            if n.skipped_file is not None and main.calls.get(n.name, 1)
        ),
        timeout=Timeout(seconds=options.budget.timeout, step=last.step)
        if stopped and last is not None
        else None,
    )


def _graph_counts(main: BuiltPass) -> dict[str, int] | None:
    """Graphs by block, zero for a block that was called and ran none; None where a subject's own backends
    could not be counted.
    """
    if main.result is None or (main.program.wrap and not main.graphs):
        return None
    return {fqn: len(main.graphs.get(fqn, ())) for fqn in [*main.calls, *main.graphs]}


def judge(main: PassResult, breaks: PassResult | None, context: Context) -> Outcome:
    """Findings of a main pass, with the breaks that another pass met."""
    events = list(main.events)
    if breaks is not None and breaks is not main:
        events += [e for e in breaks.events if e.kind == "graph_break"]
    events += raised_events(main)
    return Outcome(
        findings=tuple(diagnose(events, context)),
        compiled=compiled(main.events),
        ended=main.ended,
        ran=frozenset(fqn for fqn, ids in main.graphs.items() if ids),
        trained=main.trained,
    )


def only_uneven(findings: Sequence[Finding], known: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of the pass with uneven routing that the balanced one did not have."""
    seen = {(f.kind, f.cause, f.where) for f in known}
    return tuple(
        dataclasses.replace(f, evidence=(UNEVEN, *f.evidence))
        for f in findings
        if (f.kind, f.cause, f.where) not in seen
    )


def judge_sweep(before: Outcome, swept: Swept, context: Context) -> Outcome:
    """Recompiles of the data in place of those of the first lengths; breaks and errors stay."""
    events = [e for e in swept.events if e.kind != "graph_break"]
    lengths, sizes = data_forecast.by_step(events, swept.lead)
    at_data = dataclasses.replace(
        context, lengths=lengths, batch_sizes=sizes, probes=Probes(), graphs=None, fullgraph_breaks=()
    )
    found = [f for f in diagnose(events, at_data) if f.kind in ("recompile", "limit_hit")]
    kept = [f for f in before.findings if f.kind not in ("recompile", "limit_hit")]
    return dataclasses.replace(before, findings=(*kept, *found), compiled=compiled(swept.events))


def recompile_causes(events: Sequence[Event], context: Context) -> dict[str, str]:
    """Compile id -> cause, for every recompile."""
    # each with what came before it, which tells a change in time from a difference between blocks, and with the
    # compile that it led to; facts that are not events stay out
    alone = dataclasses.replace(context, probes=Probes(), graphs=None, fullgraph_breaks=())
    causes: dict[str, str] = {}
    met: Counter[str] = Counter()
    for i, event in enumerate(events):
        if event.kind == "recompile" and event.compile_id is not None:
            now: Counter[str] = Counter()
            led_to = [e for e in events[i + 1 :] if e.kind == "compile" and e.compile_id == event.compile_id]
            for finding in diagnose([*events[: i + 1], *led_to], alone):
                if finding.kind == "recompile":
                    now[finding.cause] += finding.count
            more = now - met
            if more:
                causes[event.compile_id] = next(iter(more))
            met = now
    return causes


def raised_events(result: PassResult) -> list[Event]:
    """An exception that left the step is an event too, unless the recorder has already told it."""
    raised = result.raised
    if raised is None or any(e.kind == "error" and e.failed.type == raised.error for e in result.events):
        return []
    return [
        Event(
            kind="error",
            time=time.time(),
            step=raised.step,
            block=raised.block,
            stack=() if raised.where is None else (raised.where,),
            detail=ErrorDetail(
                type=raised.error,
                message=raised.message,
                phase="step",
                fullgraph=result.mode == "fullgraph",
                create_graph=raised.create_graph,
            ),
        )
    ]
