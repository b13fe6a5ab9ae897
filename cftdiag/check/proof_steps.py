"""How far the proofs of a check are, as it is told while they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cftdiag.check.proofs import Compare, Prover, Run
from cftdiag.check.side_by_side import try_ahead
from cftdiag.findings import Finding, at_least, verdict
from cftdiag.passes.messages import ProgressEvent

#: What a reader is told of proofs that Ctrl-C ended.
INTERRUPTED = "interrupted while remedies were proved: those without a proof were not tried to the end"

_VERDICTS = {
    "viable": "viable",
    "viable_with_recompiles": "viable with recompiles",
    "not_viable": "not viable",
}


class ProofSteps:
    """Tells the verdict before the proofs begin, then each remedy with its number."""

    def __init__(self, findings: Sequence[Finding], progress: Callable[[ProgressEvent], None]) -> None:
        self._progress = progress
        self._told: list[str] = []
        changes = {
            repr(remedy.change)
            for finding in findings
            if at_least(finding.severity, "warning")
            for remedy in finding.remedies
            if remedy.change is not None and remedy.applicability != "diagnosis"
        }
        self._of = len(changes)
        self.interrupted = False
        causes = dict.fromkeys(f"{f.kind} {f.cause}" for f in findings if at_least(f.severity, "warning"))
        progress(
            ProgressEvent(
                phase="known",
                text=f"{_VERDICTS[verdict(findings)]}: {', '.join(causes)}; proving remedies, Ctrl-C ends the check with what is known",
            )
        )

    def announce(self, summary: str) -> None:
        """A remedy is being tried."""
        if summary not in self._told:
            self._told.append(summary)
        number = self._told.index(summary) + 1
        self._progress(
            ProgressEvent(
                phase="prove", text=f"remedy {number} of {max(self._of, number)}: {summary.rstrip('.')}"
            )
        )

    def side_by_side(
        self,
        prover: Prover,
        findings: Sequence[Finding],
        run: Run,
        compare: Compare,
        *,
        stop: Callable[[], None],
    ) -> None:
        """Try the remedies two at a time ahead of :meth:`prove`; see :func:`~cftdiag.check.side_by_side.try_ahead`."""
        try:
            try_ahead(prover, findings, run, compare, stop)
        except KeyboardInterrupt:
            self.interrupted, prover.deadline = True, float("-inf")

    def prove(self, prover: Prover, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with their remedies proved; after Ctrl-C with what was proved by then, and nothing more is run:
        the check itself is done.
        """
        try:
            return prover.prove(findings)
        except KeyboardInterrupt:
            self.interrupted, prover.deadline = True, float("-inf")
            return prover.prove(findings)

    def change_first(self, prover: Prover, findings: Sequence[Finding]) -> tuple[Mapping[str, Any], ...]:
        """What to change first; nothing after Ctrl-C."""
        if self.interrupted:
            return ()
        try:
            return prover.change_first(findings)
        except KeyboardInterrupt:
            self.interrupted = True
            return ()
