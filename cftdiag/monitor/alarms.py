"""What deserves a shout: rules over events, the same while a run goes on and when it is read afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cftdiag.events import Event

#: Kinds of alarms. The first three are what ``on_recompile`` is about.
KINDS = (
    "recompile_after_warmup",
    "unplanned_recompile",
    "limit_hit",
    "limit_near",
    "never_run",
    "compile_budget",
)
RECOMPILE_KINDS = frozenset(KINDS[:3])

#: Type of the error event for a compiled block that never ran; the cause of the same name.
NOT_REACHED = "compiled_region_not_reached"

#: Under activation checkpointing the limit must not fall between forward and recomputation: warn this many
#: entries before it.
NEAR = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One alarm. ``event`` is the event that set it off, where one did."""

    kind: str
    rank: int
    step: int
    message: str
    block: str | None = None
    event: Event | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict, without the event (it is in the run's events)."""
        return {
            "kind": self.kind,
            "rank": self.rank,
            "step": self.step,
            "block": self.block,
            "message": self.message,
        }


class Rules:
    """Feed events in order, get alarms. ``planned(event)`` says whether a plan foresees a recompile; None
    when there is no plan.
    """

    def __init__(
        self,
        *,
        warmup_steps: int = 10,
        compile_budget_s: float | None = None,
        limit: int | None = None,
        planned: Callable[[Event], bool] | None = None,
    ) -> None:
        self.warmup_steps = warmup_steps
        self.compile_budget_s = compile_budget_s
        self.limit = limit
        self.compile_s = 0.0
        self._planned = planned
        self._near: set[str] = set()
        self._over_budget = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Rules:
        """The rules that a session ran with, from its head."""
        return cls(
            warmup_steps=int(settings.get("warmup_steps") or 0),
            compile_budget_s=settings.get("compile_budget_s"),
            limit=settings.get("limit"),
        )

    def feed(self, event: Event) -> list[Alarm]:
        """Alarms that this event sets off."""
        if event.kind == "recompile":
            return [*self._recompile(event), *self._limit_near(event)]
        if event.kind == "limit_hit":
            return [self._limit_hit(event)]
        if event.kind == "compile":
            return self._budget(event)
        if event.kind == "error" and event.failed.type == NOT_REACHED:
            return [_alarm("never_run", event, event.failed.message)]
        return []

    def _recompile(self, event: Event) -> list[Alarm]:
        found = []
        if event.step > self.warmup_steps:
            found.append(
                _alarm(
                    "recompile_after_warmup",
                    event,
                    f"compiled again after warm-up ({self.warmup_steps} steps): {why(event)}",
                )
            )
        planned = self._planned(event) if self._planned is not None else event.detail.planned
        if planned is False:
            found.append(
                _alarm("unplanned_recompile", event, f"compiled again outside the plan: {why(event)}")
            )
        return found

    def _limit_hit(self, event: Event) -> Alarm:
        hit = event.limited
        who = "every block that shares this code" if event.block else "this code"
        return _alarm(
            "limit_hit",
            event,
            f"{hit.limit_kind or 'recompile_limit'} ({hit.limit}) reached: {who} now runs eager for new inputs; {why(event)}",
        )

    def _limit_near(self, event: Event) -> list[Alarm]:
        entries = event.missed.entries
        name = event.code.qualname if event.code else event.block or "?"
        if not self.limit or entries is None or not event.missed.under_checkpoint or name in self._near:
            return []
        if entries + 1 < self.limit - NEAR:
            return []
        self._near.add(name)
        used = f"{entries + 1} of {self.limit} cache entries are used under activation checkpointing"
        return [
            _alarm(
                "limit_near",
                event,
                f"{used}: the limit hit between a forward and its recomputation is a CheckpointError",
            )
        ]

    def _budget(self, event: Event) -> list[Alarm]:
        self.compile_s += event.seconds.get("total", 0.0) + event.seconds.get("backward", 0.0)
        if self.compile_budget_s is None or self._over_budget or self.compile_s <= self.compile_budget_s:
            return []
        self._over_budget = True
        return [
            _alarm(
                "compile_budget",
                event,
                f"{self.compile_s:.1f} s of compile time, over the budget of {self.compile_budget_s:g} s",
            )
        ]


def why(event: Event) -> str:
    """``seq_len; guard L['x'].size()[1] == 5; fix: mark the length dynamic``, as far as it is known."""
    parts = [event.detail.cause or "cause unknown"]
    if event.guard is not None:
        parts.append(f"guard {' '.join(event.guard.expression.split())}")
    if event.detail.remedy:
        parts.append(f"fix: {event.detail.remedy}")
    return "; ".join(parts)


def _alarm(kind: str, event: Event, message: str) -> Alarm:
    return Alarm(kind=kind, rank=event.rank, step=event.step, message=message, block=event.block, event=event)
