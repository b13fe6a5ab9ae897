"""The report of a check, as an object and as ``cftdiag.check/1`` JSON. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.findings import Finding, at_least

SCHEMA = "cftdiag.check/1"

VERDICTS = ("viable", "viable_with_recompiles", "not_viable", "error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockResult:
    """What became of one block. ``fullgraph`` is None where no fullgraph pass ran for it."""

    fqn: str
    cls: str
    kind: str
    graphs: int = 0
    graph_breaks: int = 0
    recompiles: int = 0
    fullgraph: bool | None = None
    graphs_counted: bool = True
    """False where a subject compiles itself with a backend whose runs are not seen: ``graphs`` says nothing then."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict; ``cls`` is spelled ``class``."""
        data = dataclasses.asdict(self)
        return {"fqn": data.pop("fqn"), "class": data.pop("cls"), **data}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of one check; seconds and gigabytes (1e9 bytes)."""

    verdict: str
    """One of :data:`VERDICTS`."""
    subject: Mapping[str, Any]
    """What was checked: model, options, lengths, number of parameters."""
    depth: str
    """How deep it was checked: ``trace``, ``joint``, ``codegen`` or ``run``."""
    target: str | None = None
    """Device that code was generated for."""
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    blocks: tuple[BlockResult, ...] = ()
    """What was to be compiled, in the order of the model."""
    findings: tuple[Finding, ...] = ()
    """What is wrong or will cost time, the worst first."""
    compiles: tuple[Mapping[str, Any], ...] = ()
    """Every compile with its step, length, block, cause and guards (what its graph asks of a call)."""
    forecast: Mapping[str, Any] | None = None
    """With data: compiles by step of the data, and the regions of batch x length that share a graph."""
    timing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    undetermined: tuple[str, ...] = ()
    """What this depth or these assumptions leave open, a sentence each."""
    check: Any = None
    """What a Subject's own ``check`` returned."""
    script: Mapping[str, Any] | None = None
    """What only a command has: ``command``, ``launcher``, ``ranks``, ``steps``, how it ``ended``, the paths it
    has ``written``, the (rows, length) of its ``batches`` by step.
    """
    coverage: Mapping[str, Any] | None = None
    """Share of a command's step that is compiled: ``parameters`` and ``flops`` (0 to 1 or None), and what runs
    ``eager``.
    """
    change_first: tuple[Mapping[str, Any], ...] = ()
    """Edits proved together, the best first: ``edit``, and what is left ``before`` and ``after`` it."""
    payoff: Mapping[str, Any] | None = None
    """What compiling gains and takes under each compile scope: :func:`cftdiag.payoff.estimate.to_dict`."""
    plan: Any = None
    """:class:`cftdiag.plan.Plan` of a check with data; a file of its own, not part of the report's JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The ``cftdiag.check/1`` object."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "subject": dict(self.subject),
            "depth": self.depth,
            "target": self.target,
            "environment": dict(self.environment),
            "blocks": [b.to_dict() for b in self.blocks],
            "findings": [f.to_dict() for f in self.findings],
            "compiles": [dict(c) for c in self.compiles],
            "forecast": None if self.forecast is None else dict(self.forecast),
            "timing": dict(self.timing),
            "undetermined": list(self.undetermined),
            "check": self.check,
            **({} if self.script is None else {"script": dict(self.script)}),
            **({} if self.coverage is None else {"coverage": dict(self.coverage)}),
            "change_first": [dict(c) for c in self.change_first],
            **({} if self.payoff is None else {"payoff": dict(self.payoff)}),
        }

    def exit_code(self, fail_on: str = "error") -> int:
        """0, 1 (a finding at or above ``fail_on``) or 3 (no conclusion)."""
        if self.verdict == "error":
            return 3
        if fail_on == "never":
            return 0
        return int(any(at_least(f.severity, fail_on) for f in self.findings))
