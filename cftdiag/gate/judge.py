"""A check held against what was decided about its findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.compare.fingerprint import fingerprints
from cftdiag.findings import at_least
from cftdiag.gate.baseline import Baseline, Entry
from cftdiag.gate.suppressions import Suppression, project_files, suppressions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """What is new, and what became of the rest."""

    accepted: Mapping[int, Mapping[str, Any]]
    """Index of a finding -> {by: ``baseline`` or ``comment``, reason, file, line}."""
    findings: Sequence[Mapping[str, Any]]
    unused: tuple[Suppression, ...] = ()
    """Comments that accepted nothing, or that do nothing as they are."""
    unmet: tuple[Entry, ...] = ()
    """Findings of the baseline that were not met."""
    against_baseline: bool = False
    """True where a baseline was given, if it be an empty one."""

    @property
    def new(self) -> tuple[Mapping[str, Any], ...]:
        """The findings that nobody has accepted."""
        return tuple(f for i, f in enumerate(self.findings) if i not in self.accepted)

    def exit_code(self, verdict: str, fail_on: str = "error") -> int:
        """0, 1 (a new finding at or above ``fail_on``) or 3 (no conclusion)."""
        if verdict == "error":
            return 3
        return int(fail_on != "never" and any(at_least(str(f["severity"]), fail_on) for f in self.new))

    def annotate(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The check with ``accepted`` at each accepted finding, and ``gate`` where a baseline was given or
        anything else was decided.
        """
        findings = [
            {**f, "accepted": dict(self.accepted[i])} if i in self.accepted else dict(f)
            for i, f in enumerate(data["findings"])
        ]
        counts = [row["by"] for row in self.accepted.values()]
        gate = {
            "new": len(self.new),
            "baseline": counts.count("baseline"),
            "comment": counts.count("comment"),
            "unused": [s.to_dict() for s in self.unused],
            "unmet": [dataclasses.asdict(e) for e in self.unmet],
        }
        decided = self.against_baseline or any(value for key, value in gate.items() if key != "new")
        return {**data, "findings": findings, **({"gate": gate} if decided else {})}


def judge(
    data: Mapping[str, Any],
    *,
    baseline: Baseline | None = None,
    sources: Iterable[Path] = (),
    causes: Collection[str] = (),
) -> Gate:
    """Hold a check's dict against a baseline and the comments of its files: those that findings name, and
    ``sources`` with the modules that these import. ``causes``: all that exist, to tell a misspelt one.
    """
    findings = data["findings"]
    told = dict.fromkeys(
        Path(str(f["where"]["file"])).resolve() for f in findings if (f.get("where") or {}).get("file")
    )
    files = dict.fromkeys([*project_files(sources), *told])
    comments = [s for file in files for s in suppressions(file, causes)]
    prints = fingerprints(findings)
    accepted: dict[int, dict[str, Any]] = {}
    used: set[Suppression] = set()
    for i, (print_, finding) in enumerate(zip(prints, findings, strict=True)):
        comment = next((s for s in comments if s.accepts(finding)), None)
        if comment is not None:
            used.add(comment)
            accepted[i] = {
                "by": "comment",
                "reason": comment.reason,
                "file": comment.file,
                "line": comment.line,
            }
        elif baseline is not None and baseline.known(print_, str(finding["severity"])):
            accepted[i] = {"by": "baseline", "reason": None, "file": None, "line": None}
    return Gate(
        accepted=accepted,
        findings=findings,
        unused=tuple(s for s in comments if s not in used and _ours(s, data)),
        unmet=() if baseline is None else baseline.unmet(prints),
        against_baseline=baseline is not None,
    )


def _ours(comment: Suppression, data: Mapping[str, Any]) -> bool:
    """Without a conclusion nobody knows what a comment would have accepted."""
    return comment.problem is not None or data["verdict"] != "error"
