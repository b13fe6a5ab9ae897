"""Findings of two reports, matched by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Effect
from cftdiag.compare.fingerprint import fingerprints, guard_key, place
from cftdiag.compare.normal import plain
from cftdiag.findings import SEVERITIES

Finding = Mapping[str, Any]


def compare_findings(before: Sequence[Finding], after: Sequence[Finding]) -> list[Change]:
    """New, gone and changed ones. What is matched by no fingerprint is matched by kind and cause at one
    place, then by kind and place: the same trouble under another guard or name.
    """
    pairs, old, new = _matched(before, after)
    changes = []
    for a, b in pairs:
        # What had another cause before is not more: 1 of A and 1 of B are as many as 2 of A.
        more = _met(after, b) > _met(before, b)
        changes += _changed(a, b, more=more)
    changes += [
        Change(
            section="findings",
            what=title(finding),
            after=dict(finding),
            effect="worse",
            severity=_severity(finding),
            blocks=_blocks(finding),
        )
        for finding in new
    ]
    changes += [
        Change(
            section="findings",
            what=title(finding),
            before=dict(finding),
            effect="better",
            severity=_severity(finding),
            blocks=_blocks(finding),
        )
        for finding in old
    ]
    return changes


def _matched(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[list[tuple[Finding, Finding]], list[Finding], list[Finding]]:
    """(pairs, those before alone, those after alone)."""
    old = dict(zip(fingerprints(before), before, strict=True))
    new = dict(zip(fingerprints(after), after, strict=True))
    pairs = [(old[key], new[key]) for key in old if key in new]
    left, right = ([f for k, f in a.items() if k not in b] for a, b in ((old, new), (new, old)))
    ways: tuple[Callable[[Finding], Any], ...] = (
        lambda f: (f.get("kind"), f.get("cause"), place(f)),
        lambda f: (f.get("kind"), place(f)) if any(place(f)) else None,
    )
    for key_of in ways:
        for a in list(left):
            key = key_of(a)
            b = next((b for b in right if key is not None and key_of(b) == key), None)
            if b is not None:
                pairs.append((a, b))
                left.remove(a)
                right.remove(b)
    return pairs, left, right


def _met(findings: Sequence[Finding], like: Finding) -> int:
    """How often something of the kind of ``like`` was met in its blocks, whatever the cause."""
    blocks = set(_blocks(like))
    return sum(
        int(f.get("count") or 1)
        for f in findings
        if f.get("kind") == like.get("kind") and (not blocks or blocks & set(_blocks(f)))
    )


def _changed(a: Finding, b: Finding, *, more: bool) -> list[Change]:
    """``more``: there are more of their kind than there were."""
    changes = []

    def note(field: str, old: Any, new: Any, effect: Effect = "other", severity: str = "info") -> None:
        changes.append(
            Change(
                section="findings",
                what=title(b),
                field=field,
                before=old,
                after=new,
                effect=effect,
                severity=severity,
                blocks=_blocks(b),
            )
        )

    if a.get("cause") != b.get("cause"):
        note("cause", a.get("cause"), b.get("cause"))
    if _severity(a) != _severity(b):
        worse = SEVERITIES.index(_severity(b)) > SEVERITIES.index(_severity(a))
        note("severity", _severity(a), _severity(b), "worse" if worse else "better", _severity(b))
    old, new = (int(f.get("count") or 1) for f in (a, b))
    if old != new:
        effect: Effect = "better" if new < old else "worse" if more else "other"
        note("count", old, new, effect, _severity(b))
    for field in ("lengths", "steps"):
        if list(a.get(field) or ()) != list(b.get(field) or ()):
            note(field, list(a.get(field) or ()), list(b.get(field) or ()))
    if set(_blocks(a)) != set(_blocks(b)):
        grown = set(_blocks(b)) > set(_blocks(a))
        note("blocks", list(_blocks(a)), list(_blocks(b)), "worse" if grown else "other", _severity(b))
    if guard_key(a.get("guard")) != guard_key(b.get("guard")):
        note("guard", a.get("guard"), b.get("guard"))
    if [plain(p) for p in place(a)] != [plain(p) for p in place(b)]:
        note("where", a.get("where"), b.get("where"))
    helped, helps = (
        {plain(r.get("summary")): r.get("verified") for r in f.get("remedies") or ()} for f in (a, b)
    )
    for summary in helped:
        if helped[summary] and helps.get(summary) is False:
            note("remedy", f"verified: {summary}", f"does not help: {summary}", "worse")
    return changes


def title(finding: Finding) -> str:
    """``graph_break data_dependent_branch``."""
    return f"{finding.get('kind')} {finding.get('cause')}"


def _severity(finding: Finding) -> str:
    severity = str(finding.get("severity"))
    return severity if severity in SEVERITIES else "info"


def _blocks(finding: Finding) -> tuple[str, ...]:
    return tuple(map(str, finding.get("blocks") or ()))
