"""One difference between two documents, and all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from cftdiag.findings import SEVERITIES, at_least

SCHEMA = "cftdiag.diff/1"

Effect = Literal["worse", "better", "other"]
EFFECTS: tuple[Effect, ...] = ("worse", "better", "other")

#: Sections in the order in which they are read.
SECTIONS = (
    "verdict",
    "findings",
    "blocks",
    "compiles",
    "forecast",
    "regimes",
    "ranks",
    "coverage",
    "payoff",
    "kernels",
    "settings",
    "seconds",
    "conditions",
    "environment",
    "undetermined",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that is not as it was. ``before`` is None for what is new, ``after`` for what is gone.

    ``severity`` is that of a finding of this weight; it counts only where ``effect`` is ``worse``.
    """

    section: str
    what: str
    field: str = ""
    """What of it changed; empty where it is new or gone as a whole."""
    before: Any = None
    after: Any = None
    effect: Effect = "other"
    severity: str = "info"
    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.section in SECTIONS and self.effect in EFFECTS and self.severity in SEVERITIES

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict."""
        return {**dataclasses.asdict(self), "blocks": list(self.blocks)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of this machine, such as seconds: told, and judged only where that is asked for."""

    name: str
    before: float | None
    after: float | None
    unit: str = "s"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diff:
    """A ``cftdiag.diff/1`` object."""

    kind: str
    """``check``, ``run``, ``check and run``, ``kernels`` or ``plan``."""
    before: dict[str, Any]
    """``name`` and ``environment`` of the first document."""
    after: dict[str, Any]
    changes: tuple[Change, ...] = ()
    figures: tuple[Figure, ...] = ()
    inconclusive: bool = False
    """True where neither document reached a conclusion."""

    def worse(self, floor: str = "info") -> tuple[Change, ...]:
        """The regressions at or above a severity."""
        return tuple(c for c in self.changes if c.effect == "worse" and at_least(c.severity, floor))

    def exit_code(self, fail_on: str = "error") -> int:
        """0, 1 (a regression at or above ``fail_on``) or 3 (neither document has a conclusion)."""
        if self.inconclusive:
            return 3
        return int(fail_on != "never" and bool(self.worse(fail_on)))

    def to_dict(self) -> dict[str, Any]:
        """The ``cftdiag.diff/1`` object."""
        regressions = [c.severity for c in self.worse()]
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "before": self.before,
            "after": self.after,
            "same": not self.changes,
            "regressions": {severity: regressions.count(severity) for severity in SEVERITIES[::-1]},
            "changes": [c.to_dict() for c in self.changes],
            "figures": [dataclasses.asdict(f) for f in self.figures],
        }


def in_order(changes: Sequence[Change]) -> tuple[Change, ...]:
    """By section, the worst first in each."""
    return tuple(
        sorted(
            changes,
            key=lambda c: (
                SECTIONS.index(c.section),
                EFFECTS.index(c.effect),
                -SEVERITIES.index(c.severity),
            ),
        )
    )
