"""Ranks that a compile cache answers differently: some load a graph, others compile it. Pure."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable

from cftdiag.capture.cache_parts import differing
from cftdiag.events import Event
from cftdiag.findings import Finding, Remedy
from cftdiag.monitor.divergence import ranks_text
from cftdiag.torch_settings import offered

#: For keys that differ between ranks.
_ONE_GRAPH = Remedy(
    summary="Keep what differs between ranks out of the graph, so that all of them have one entry: "
    "torch.compiler.config.compile_on_one_rank = True (or TORCH_COMPILE_ON_ONE_RANK=1). Devices and process groups are "
    "then looked up when the graph runs.",
    change={"torch.compiler.config.compile_on_one_rank": True},
)
#: For one key that not all ranks have.
_CARRY = Remedy(
    summary="Give all nodes the same entries before the run: cftdiag cache DIR --pack FILE on one that has them, cftdiag "
    "cache FILE --unpack DIR on the others."
)
_UNANIMOUS = Remedy(
    summary="Let all ranks load or all compile: torch._functorch.config._sync_cache_decision_cross_ranks = True. A rank "
    "that hits alone then compiles with the others, and no collective of the compiler waits for it.",
    change={"torch._functorch.config._sync_cache_decision_cross_ranks": True},
)


def partial_hits(events: Iterable[Event], settings: Collection[str] = ()) -> Finding | None:
    """One finding for all lookups of a run that some ranks hit and others missed; None where there is none.
    ``settings``: those of :data:`cftdiag.torch_settings.SOME_RELEASES` that the run's torch has.
    """
    lookups: dict[tuple[object, ...], list[Event]] = collections.defaultdict(list)
    for event in events:
        if event.kind == "cache" and event.cached.outcome in ("hit", "miss"):
            lookups[event.compile_id, event.cached.cache, event.region].append(event)
    apart = [found for found in lookups.values() if len({e.cached.outcome for e in found}) > 1]
    # what one rank missed and hit later is no difference between ranks
    apart = [found for found in apart if len({e.rank for e in found}) == len(found)]
    if not apart:
        return None
    parts: dict[str, None] = {}
    evidence = []
    for found in apart:
        hit, missed = ([e for e in found if e.cached.outcome == word] for word in ("hit", "miss"))
        differs = differing(missed[0].cached.parts or {}, hit[0].cached.parts or {})
        parts |= dict.fromkeys(differs)
        evidence.append(
            f"step {found[0].step}, compile {found[0].compile_id} of {found[0].block or '?'}, {found[0].cached.cache}: "
            f"{ranks_text(sorted(e.rank for e in hit))} hit, {ranks_text(sorted(e.rank for e in missed))} missed"
            + (f" (another {', '.join(differs)})" if differs else "")
        )
    blocks = (e.block for found in apart for e in found if e.block)
    why = (
        f"their keys differ in {', '.join(parts)}"
        if parts
        else "their keys are the same, and the entry was not there for all"
    )
    remedies = (_ONE_GRAPH if parts else _CARRY, _UNANIMOUS)
    return Finding(
        kind="perf",
        cause="cache_miss",
        severity="info",
        blocks=tuple(dict.fromkeys(blocks)),
        count=len(apart),
        steps=tuple(sorted({e.step for found in apart for e in found})),
        evidence=tuple(evidence[:8]),
        explanation=f"{len(apart)} lookup(s) in compile caches hit on some ranks and missed on others, which wait for the "
        f"compiles of the latter: {why}.",
        remedies=tuple(remedy for remedy in remedies if offered(remedy.change, settings)),
        doc="docs/causes/cache_miss.md",
    )
