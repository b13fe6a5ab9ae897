"""What the events mean: one frozen dataclass a finding, with its cause, evidence and remedies."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any

SCHEMA = "cftdiag.finding/1"

KINDS = ("graph_break", "recompile", "limit_hit", "error", "perf", "numerics")
SEVERITIES = ("info", "warning", "error")

#: How a remedy may be used: it keeps the numbers; it changes them; a person has to edit the code; it only tells
#: more about the trouble, and is no fix.
APPLICABILITIES = ("safe", "changes_numbers", "by_hand", "diagnosis")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The line to look at: the user's or the model's own code before a library's. Every field may be None."""

    file: str | None = None
    """Path of the file, whole where it is known."""
    line: int | None = None
    """Number of the line, from 1."""
    function: str | None = None
    """Qualified name of the function around it."""
    code: str | None = None
    """The source line, stripped."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One way out.

    ``change`` is a mechanical change (a key of the check's options or a dotted torch config name -> the new
    value) or None when the remedy is in words only. ``verified`` is True or False once the check was run
    again with the change, None before that or for words. ``edit`` is what to write: a diff, or command-line
    flags.
    """

    summary: str
    """What to do, in a sentence or two."""
    change: Mapping[str, Any] | None = None
    edit: str | None = None
    applicability: str = "by_hand"
    """One of :data:`APPLICABILITIES`. A ``diagnosis`` is a step to learn more: never a fix, never verified."""
    verified: bool | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    why_not: str | None = None
    """Of a remedy that was tried in vain: what is left or what it would do instead."""
    unsafe: bool = False
    """True for a change that gives up a safety check of torch."""

    def __post_init__(self) -> None:
        if self.applicability not in APPLICABILITIES:
            raise ValueError(
                f"unknown applicability {self.applicability!r}; one of {', '.join(APPLICABILITIES)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause, where it is, which blocks it hits and what to do."""

    kind: str
    """One of :data:`KINDS`."""
    cause: str
    """Key of the cause; ``cftdiag explain CAUSE`` has its page."""
    severity: str
    """One of :data:`SEVERITIES`."""
    blocks: tuple[str, ...] = ()
    """Names of the blocks that it hits."""
    where: Where = dataclasses.field(default_factory=Where)
    guard: str | None = None
    """The guard that missed, of a recompile or a limit."""
    gb_id: str | None = None
    """Number of a graph break in torch's registry (``GB0170``)."""
    count: int = 1
    """How often it was met."""
    steps: tuple[int, ...] = ()
    """Optimizer steps in which it was met, from 1; 0 while warming."""
    lengths: tuple[int, ...] = ()
    """Lengths of the batches in which it was met."""
    evidence: tuple[str, ...] = ()
    """Lines of torch's that it rests on."""
    explanation: str = ""
    """What happened here, with the values of this case."""
    remedies: tuple[Remedy, ...] = ()
    """Ways out, the best first."""
    doc: str | None = None
    """Page of the cause, or torch's own page of the break."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown finding kind {self.kind!r}; one of {', '.join(KINDS)}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"unknown severity {self.severity!r}; one of {', '.join(SEVERITIES)}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict, with the schema's name first."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Inverse of :meth:`to_dict`; raises ``ValueError`` for another schema or a malformed object."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} object: schema is {data.get('schema')!r}")
        names = {f.name for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names
        }
        try:
            values["where"] = Where(**(values.get("where") or {}))
            values["remedies"] = tuple(Remedy(**r) for r in values.get("remedies") or ())
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"malformed {SCHEMA} object: {error}") from error


def at_least(severity: str, floor: str) -> bool:
    """True when ``severity`` is ``floor`` or worse."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(floor)


def verdict(findings: Iterable[Finding]) -> str:
    """The verdict of a set of findings: ``not_viable`` for any error, else ``viable_with_recompiles`` for any
    recompile, else ``viable``.
    """
    found = list(findings)
    if any(f.severity == "error" for f in found):
        return "not_viable"
    if any(f.kind == "recompile" for f in found):
        return "viable_with_recompiles"
    return "viable"


def covers(pattern: str, fqn: str) -> bool:
    """Whether a pattern of ``Finding.blocks`` means this block; ``*`` stands for one part of the name."""
    if pattern == fqn:
        return True
    return re.fullmatch(fnmatch.translate(pattern).replace(".*", "[^.]*"), fqn) is not None
