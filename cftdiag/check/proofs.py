"""Proving remedies: apply the mechanical change, run the check again, and say what became of the finding.

Torch-free: the runs happen in passes. A remedy that does not help is kept and says so; one that this subject
cannot take, or for which no time was left, stays unproved (``verified: null``), and so does a step of
diagnosis, which mends nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.check.changes import apply_change, edit_of
from cftdiag.check.outcome import Outcome, harm, removed, why_not
from cftdiag.errors import CheckError
from cftdiag.findings import APPLICABILITIES, Finding, Remedy, at_least
from cftdiag.options import CheckOptions

#: Remedies proved for one finding at most: the first ones are the preferred ones.
MOST = 4

Run = Callable[[CheckOptions], Outcome]
"""One run of the check, within the time limit of its options; raises :class:`CheckError` where it could not be
made.
"""
Compare = Callable[[CheckOptions], bool | None]
"""Whether loss and gradients equal eager's; None where that was not or could not be asked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A remedy of a finding that can be tried: ``changed`` are the options with it."""

    finding: Finding
    remedy: Remedy
    changed: CheckOptions


class _OutOfTime(Exception):
    """The budget for proofs is used up."""


#: What only the comparison with eager shows; other wrong numbers are seen in the generated code.
_COMPARED = "silent_wrong_numerics"


class Prover:
    """Proves the remedies of all findings within one budget; equal changes are run once."""

    def __init__(
        self,
        options: CheckOptions,
        before: Outcome,
        run: Run,
        *,
        config_subject: bool,
        wrap: bool,
        compare: Compare = lambda options: None,
        announce: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.options, self.before, self.run, self.compare = options, before, run, compare
        self.config_subject, self.wrap, self.announce = config_subject, wrap, announce
        self.deadline = time.monotonic() + options.budget.verify_budget
        self.left = 0
        self._known: dict[str, Outcome | None] = {}
        self._equal: dict[str, bool | None] = {}

    def prove(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with every remedy that could be tried proved or disproved; one that removes other
        findings as well stands beside these too.
        """
        proved = [
            dataclasses.replace(f, remedies=self._remedies(f)) if at_least(f.severity, "warning") else f
            for f in findings
        ]
        shared = [r for f in proved for r in f.remedies if r.verified]
        return tuple(
            dataclasses.replace(f, remedies=_ranked([*f.remedies, *self._credited(f, shared)]))
            if at_least(f.severity, "warning")
            else f
            for f in proved
        )

    def change_first(self, findings: Sequence[Finding]) -> tuple[Mapping[str, Any], ...]:
        """The verified remedies, proved once more together: each is added to those before it and kept where
        less is left with it. ``before`` and ``after`` are of the run without it and with it.
        """
        best = [next((r for r in f.remedies if _leads(r)), None) for f in findings]
        distinct = {repr(r.change): r for r in best if r is not None}
        rows: list[Mapping[str, Any]] = []
        now, options = self.before, self.options
        for remedy in sorted(distinct.values(), key=_compiles_left):
            assert remedy.change is not None
            changed = apply_change(options, remedy.change, config_subject=self.config_subject)
            after = None if changed is None else self._outcome(changed, remedy.summary)
            if changed is None or after is None or not self._less_is_left(findings, now, after):
                continue
            try:
                if self._equals(changed) is False:
                    continue
            except _OutOfTime:
                break
            rows.append(
                {
                    "edit": remedy.edit or edit_of(remedy.change),
                    "before": self._figures(now, findings),
                    "after": self._figures(after, findings),
                }
            )
            now, options = after, changed
        return tuple(rows)

    def attempts(self, findings: Sequence[Finding]) -> list[Sequence[Attempt]]:
        """What :meth:`prove` tries, in its order: one entry for each change, with the remedies that make it."""
        by_change: dict[str, list[Attempt]] = {}
        for finding in findings:
            if at_least(finding.severity, "warning") and self.before.meets(finding):
                for attempt in self._attempts(finding):
                    by_change.setdefault(repr(attempt.changed), []).append(attempt)
        return list(by_change.values())

    def _attempts(self, finding: Finding) -> list[Attempt]:
        found: list[Attempt] = []
        for remedy in finding.remedies:
            changed = None if len(found) == MOST else self._changed(remedy)
            if changed is not None:
                found.append(Attempt(finding=finding, remedy=remedy, changed=changed))
        return found

    def _remedies(self, finding: Finding) -> tuple[Remedy, ...]:
        tried = {id(a.remedy): a for a in self._attempts(finding)}
        return _ranked([self.attempt(tried[id(r)]) if id(r) in tried else r for r in finding.remedies])

    def _changed(self, remedy: Remedy) -> CheckOptions | None:
        if remedy.change is None or remedy.applicability == "diagnosis":
            return None
        if self.wrap and {"compile_scope", "ac", "fullgraph"} & set(remedy.change):
            return None  # a subject that wraps itself decides these
        return apply_change(self.options, remedy.change, config_subject=self.config_subject)

    def attempt(self, attempt: Attempt) -> Remedy:
        """The remedy proved or disproved, or as it was where it could not be tried."""
        finding, remedy, changed = attempt.finding, attempt.remedy, attempt.changed
        if not self.before.meets(finding):
            return remedy  # what is not met without the remedy proves nothing with it
        after = self._outcome(changed, remedy.summary)
        if after is None:
            return remedy
        why = why_not(finding, self.before, after)
        if why is None:
            try:
                equal = self._equals(changed)
            except _OutOfTime:
                return remedy
            if equal is None and finding.cause == _COMPARED:
                return remedy
            why = "loss or gradients differ from eager's" if equal is False else None
        return dataclasses.replace(
            remedy,
            verified=why is None,
            why_not=why,
            edit=remedy.edit or edit_of(remedy.change or {}),
            before=self.before.figures(finding),
            after=after.figures(finding, self.before),
        )

    def _credited(self, finding: Finding, shared: Sequence[Remedy]) -> list[Remedy]:
        """Remedies of other findings that remove this one too."""
        known = [r.change for r in finding.remedies]
        credited: list[Remedy] = []
        for remedy in shared:
            changed = self._changed(remedy)
            if changed is None or remedy.change in known:
                continue
            after = self._known.get(repr(changed))
            equal = self._equal.get(repr(changed))
            if after is None or not removed(finding, self.before, after):
                continue
            if equal is None and finding.cause == _COMPARED:
                continue
            known.append(remedy.change)
            figures = {"before": self.before.figures(finding), "after": after.figures(finding, self.before)}
            credited.append(dataclasses.replace(remedy, **figures))  # type: ignore[arg-type]
        return credited

    def _less_is_left(self, findings: Sequence[Finding], now: Outcome, after: Outcome) -> bool:
        """True when a further change removes a finding, or saves a compile, and harms none."""
        left = [f for f in findings if at_least(f.severity, "warning") and now.count(f, self.before)]
        if not left or any(harm(f, now, after) for f in left):
            return False
        return after.compiles < now.compiles or any(not after.count(f, self.before) for f in left)

    def _figures(self, outcome: Outcome, findings: Sequence[Finding]) -> dict[str, int]:
        left = [f for f in findings if at_least(f.severity, "warning") and outcome.count(f, self.before)]
        return {"compiles": outcome.compiles, "findings": len(left)}

    def _outcome(self, changed: CheckOptions, summary: str) -> Outcome | None:
        """The run with a change, made once; None where it could not be made or no time was left."""
        key = repr(changed)
        if key not in self._known:
            limited = self._within(changed)
            if limited is None:
                return None
            self.announce(summary)
            outcome: Outcome | None
            try:
                outcome = self.run(limited)
            except CheckError:
                outcome = None
            if (outcome is None or not outcome.ended) and self._within(changed) is None:
                return None  # stopped by the budget, not by the change
            self._known[key] = outcome
        return self._known[key]

    def _within(self, changed: CheckOptions) -> CheckOptions | None:
        """The options with no more time for a pass than is left; None, and counted, where none is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            self.left += 1
            return None
        return changed.with_(timeout=min(changed.budget.timeout, left))

    def _equals(self, changed: CheckOptions) -> bool | None:
        key = repr(changed)
        if key not in self._equal:
            limited = self._within(changed)
            if limited is None:
                raise _OutOfTime
            try:
                equal = self.compare(limited)
            except CheckError:
                equal = None
            if equal is None and self._within(changed) is None:
                raise _OutOfTime
            self._equal[key] = equal
        return self._equal[key]


def _leads(remedy: Remedy) -> bool:
    return remedy.verified is True and not remedy.unsafe and remedy.change is not None


def _compiles_left(remedy: Remedy) -> int:
    return int((remedy.after or {}).get("compiles", 0))


def _ranked(remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Proved ones first, by the compiles that they leave, then in the order of preference; an unsafe one
    never leads, and a step of diagnosis is no way out.
    """
    rank = {True: 0, None: 1, False: 2}

    def key(remedy: Remedy) -> tuple[bool, bool, int, int, int]:
        left = _compiles_left(remedy) if remedy.verified else 0
        order = APPLICABILITIES.index(remedy.applicability) if remedy.verified else 0
        return remedy.applicability == "diagnosis", remedy.unsafe, rank[remedy.verified], left, order

    return tuple(sorted(remedies, key=key))
