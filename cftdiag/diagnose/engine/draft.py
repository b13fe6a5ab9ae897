"""A finding in the making: sightings of one cause are gathered until all events were read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from cftdiag.diagnose.engine.cause import Cause, fill, needs, sentence
from cftdiag.diagnose.engine.context import Context
from cftdiag.diagnose.engine.registry import CAUSES
from cftdiag.events import Event
from cftdiag.findings import SEVERITIES, Finding, Remedy, Where
from cftdiag.torch_settings import offered

#: More lines than this say nothing new.
_EVIDENCE = 8


@dataclasses.dataclass(kw_only=True)
class Draft:
    """One finding while it is gathered; ``key`` says which sightings are the same finding."""

    key: tuple[Any, ...]
    kind: str
    cause: str
    severity: str
    where: Where = dataclasses.field(default_factory=Where)
    guard: str | None = None
    gb_id: str | None = None
    blocks: list[str] = dataclasses.field(default_factory=list)
    count: int = 0
    steps: list[int] = dataclasses.field(default_factory=list)
    evidence: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Sentences to add to the explanation."""
    says: str | None = None
    """What is said instead of the cause's own sentence, with the same facts."""
    remedies: tuple[Remedy, ...] = ()
    """Remedies of this finding alone, before those of its cause."""
    only_own: bool = False
    """Whether they stand for those of the cause."""

    def note(self, *texts: str) -> None:
        """Add evidence, each line once."""
        for text in texts:
            if text and text not in self.evidence:
                self.evidence.append(text)

    def seen(self, event: Event, blocks: Iterable[str] = ()) -> None:
        """Count one sighting."""
        self.count += 1
        self.steps.append(event.step)
        self.blocks += [b for b in blocks if b not in self.blocks]

    def finding(self, context: Context) -> Finding:
        """The finding, with its explanation and the remedies that apply."""
        cause = CAUSES[self.cause]
        steps = tuple(sorted(set(self.steps)))
        lengths = dict.fromkeys(n for n in (context.length_at(s) for s in steps) if n is not None)
        return Finding(
            kind=self.kind,
            cause=self.cause,
            severity=self.severity,
            blocks=context.shorten(self.blocks),
            where=self.where,
            guard=self.guard,
            gb_id=self.gb_id,
            count=max(self.count, 1),
            steps=steps,
            lengths=tuple(lengths),
            evidence=tuple(self.evidence[:_EVIDENCE]),
            explanation=" ".join([self._says(cause), *self.notes]),
            remedies=_remedies(cause, self, context),
            doc=cause.doc(),
        )

    def _says(self, cause: Cause) -> str:
        """The cause's sentence; where a fact that it needs is unknown, what the cause is called and what is known."""
        told = sentence(self.says or cause.says, self.facts)
        if told is not None:
            return told
        if self.guard:
            return f"{cause.title}: the guard `{self.guard}` failed."
        return f"{cause.title}: `{self.where.code}`." if self.where.code else f"{cause.title}."


class Drafts:
    """Drafts by key, in the order of their first sighting."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Draft] = {}

    def get(self, kind: str, cause: str, severity: str, *key: Any) -> tuple[Draft, bool]:
        """The draft of that key (made when new), and whether it is new; the worse severity stays."""
        whole = (kind, cause, *key)
        draft = self._found.get(whole)
        if draft is not None:
            draft.severity = max(draft.severity, severity, key=SEVERITIES.index)
            return draft, False
        draft = self._found[whole] = Draft(key=whole, kind=kind, cause=cause, severity=severity)
        return draft, True

    def drop(self, draft: Draft) -> None:
        """Forget a draft that belongs to another one."""
        self._found.pop(draft.key, None)

    def __iter__(self) -> Any:
        return iter(list(self._found.values()))

    def of(self, *kinds: str) -> list[Draft]:
        """Drafts of these kinds."""
        return [d for d in self._found.values() if d.kind in kinds]


#: The setting that a remedy puts back to its default: there is nothing to put back where it was left.
_BUDGET = "torch._functorch.config.activation_memory_budget"


def _remedies(cause: Cause, draft: Draft, context: Context) -> tuple[Remedy, ...]:
    every = draft.remedies if draft.only_own else (*draft.remedies, *cause.remedies)
    apply = [r for r in every if _applies(r, draft, context)]
    told = {k for k, v in draft.facts.items() if v is not None}
    whole = [r for r in apply if needs(r.summary) <= told]
    found = [fill(r, draft.facts) for r in whole or apply]
    found = list({r.summary: r for r in found if not r.summary.startswith("<")}.values())
    return tuple(sorted(found, key=lambda r: r.unsafe))


def _applies(remedy: Remedy, draft: Draft, context: Context) -> bool:
    """False for a change that is already in force, and for one that cannot touch this finding."""
    change = dict(remedy.change or {})
    if "skipped_class" in draft.facts:  # nothing else helps a frame that Dynamo skips
        return "skipped_class" in needs(remedy.summary)
    if not offered(change, context.settings):
        return False
    if _BUDGET in change:
        return _BUDGET in (draft.facts.get("config") or "")
    if any(name.startswith("torch._inductor.") for name in change) and draft.facts.get("backend"):
        return draft.facts["backend"] == "inductor"
    if "dynamic" in change:
        now = context.compile_kwargs.get("dynamic")
        return now is False if change["dynamic"] == "auto" else now is not True
    if change.get("compile_kwargs") == {"fullgraph": True}:
        return not context.compile_kwargs.get("fullgraph") and draft.severity != "error"
    if "drop_last" in change:
        return _only_last(context.batch_sizes)
    if "attn" in change or "flash_varlen" in change:
        return "/transformers/" in (draft.where.file or "") and "flash" in (draft.where.file or "")
    return True


def _only_last(sizes: Sequence[int | None]) -> bool:
    """False when batches before the last one differ in size: then no partial batch is the trouble."""
    return len(set(sizes[:-1])) < 2


def region(event: Event) -> str | None:
    """Name of the region of an event: its block, ``optimizer.step`` for a compiled optimizer, None when
    unknown.
    """
    if event.block:
        return event.block
    if event.code is not None and "/torch/optim/" in event.code.file:
        return "optimizer.step"
    return None
