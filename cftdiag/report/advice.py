"""What to change first: the edit itself, what it does, and whether that was proved. Pure functions over the check's
dict.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Mapping
from typing import Any

from cftdiag.check import changes
from cftdiag.report import wording

#: Edits that are shown; the findings hold the others.
MOST = 5

#: What a finding of each kind counts.
_NOUNS = {
    "graph_break": "breaks",
    "recompile": "recompiles",
    "limit_hit": "limit hits",
    "error": "errors",
    "numerics": "wrong results",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One edit, as it is told."""

    text: str
    """What to write, or in words what to do."""
    mark: str
    """``breaks 36 -> 0, compiles 11 -> 1; proved``, or how far it can be trusted."""
    proved: bool
    is_code: bool = True
    """Whether ``text`` is to be written as it stands; else it is words."""
    where: str | None = None
    """The line to change, for what is to be done by hand."""
    diff: tuple[str, ...] = ()
    """Changed lines of the user's own file, with ``-``, ``+`` and ``@@``."""


def advice(data: Mapping[str, Any]) -> list[Advice]:
    """The edits that were proved together, the best first; then for each finding that none of them removes its
    best remedy.
    """
    rows = data.get("change_first") or ()
    diffs = data.get("diffs") or {}
    told = [_proved_together(row, data["findings"], diffs) for row in rows]
    edits = {str(row["edit"]) for row in rows}
    seen: set[str] = set()
    for finding in data["findings"]:
        if finding.get("severity") == "info" or any(
            r.get("verified") and r.get("edit") in edits for r in finding.get("remedies") or ()
        ):
            continue
        remedy = wording.best_remedy(finding)
        if remedy is None or remedy.get("verified") is False:
            continue
        one = _single(remedy, finding, diffs)
        if one.text not in seen:
            seen.add(one.text)
            told.append(one)
    return told


def mark(remedy: Mapping[str, Any], kind: str = "") -> str:
    """What is known of a remedy: ``verified: recompiles 3 -> 0``, ``tried, does not help``, ``not verified``, with
    ``unsafe`` where it is. ``kind`` of the finding says what its ``count`` counts.
    """
    verified = remedy.get("verified")
    if remedy.get("applicability") == "diagnosis":
        return "to learn more, no fix"
    if verified is None:
        words = "not verified" if remedy.get("change") else "by hand"
    else:
        words = "verified" if verified else "tried, does not help"
        told = [text for text in (remedy.get("why_not"), _moved(remedy, kind)) if text]
        if told:
            words += f": {', '.join(told)}"
    if remedy.get("applicability") == "changes_numbers" and verified is not False:
        words += ", changes numbers"
    return f"{words}, unsafe" if remedy.get("unsafe") else words


def edit_of(remedy: Mapping[str, Any]) -> str:
    """What to write for a mechanical remedy, on one line; empty for one in words."""
    return edit_line(_edit(remedy))


def _edit(remedy: Mapping[str, Any]) -> str:
    return str(remedy.get("edit") or (changes.edit_of(remedy["change"]) if remedy.get("change") else ""))


def edit_line(edit: Any) -> str:
    """An edit of one or more lines on one."""
    return "; ".join(str(edit).splitlines())


def also_shown(finding: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The remedies that are shown beside the best: the verified ones; where the best is by hand and holds under a
    condition only, those under another condition, because nothing says which of them is met.
    """
    best = wording.best_remedy(finding)
    others = [r for r in finding.get("remedies") or () if r is not best]
    verified = [r for r in others if r.get("verified")]
    if verified or best is None or not _conditional(best):
        return verified
    return [r for r in others if _conditional(r)]


def _conditional(remedy: Mapping[str, Any]) -> bool:
    """True for a remedy in words that says first where it applies, as remedies of causes do."""
    return not remedy.get("change") and str(remedy.get("summary")).startswith(("Where ", "If "))


def _moved(row: Mapping[str, Any], kind: str = "") -> str:
    before, after = row.get("before") or {}, row.get("after") or {}
    return ", ".join(
        f"{_NOUNS.get(kind, key) if key == 'count' else key.replace('_', ' ')} {before[key]} -> {after[key]}"
        for key in before
        if key in after and before[key] != after[key]
    )


def _proved_together(row: Mapping[str, Any], findings: Any, diffs: Mapping[str, str]) -> Advice:
    counts: dict[str, list[int]] = {}
    for finding in findings:
        for remedy in finding.get("remedies") or ():
            if remedy.get("verified") and remedy.get("edit") == row["edit"]:
                before, after = remedy.get("before") or {}, remedy.get("after") or {}
                noun = _NOUNS.get(str(finding.get("kind")))
                if noun and "count" in before and "count" in after:
                    sums = counts.setdefault(noun, [0, 0])
                    sums[0] += before["count"]
                    sums[1] += after["count"]
    moved = [f"{noun} {a} -> {b}" for noun, (a, b) in counts.items() if a != b]
    return Advice(
        text=edit_line(row["edit"]),
        mark="; ".join(filter(None, [", ".join(filter(None, [*moved, _moved(row)])), "proved"])),
        proved=True,
        diff=changed_lines(diffs.get(str(row["edit"]), "")),
    )


def _single(remedy: Mapping[str, Any], finding: Mapping[str, Any], diffs: Mapping[str, str]) -> Advice:
    proved = remedy.get("verified") is True
    if proved:
        words = f"{_moved(remedy, str(finding.get('kind')))}; proved"
    else:
        words = "not proved" if remedy.get("change") else "by hand, not proved"
    if remedy.get("unsafe"):
        words += ", unsafe"
    mechanical = edit_of(remedy)
    return Advice(
        text=mechanical or str(remedy.get("summary")),
        mark=words.lstrip("; "),
        proved=proved,
        is_code=bool(mechanical),
        where=None if mechanical else wording.where(finding),
        diff=changed_lines(diffs.get(_edit(remedy), "")),
    )


def patch_hint(data: Mapping[str, Any]) -> str:
    """The command that writes the edits; it needs the check saved."""
    arguments = list((data.get("asked") or {}).get("arguments") or ())
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    saved = next((value for flag, value in itertools.pairwise(own) if flag == "--json"), None)
    saved = next((word.partition("=")[2] for word in own if word.startswith("--json=")), saved)
    if saved and saved != "-":
        return f"cftdiag fix {shlex.quote(str(saved))} writes this as a patch, proved"
    return "save the check with --json CHECK.json; cftdiag fix CHECK.json writes this as a patch, proved"


def changed_lines(diff: str) -> tuple[str, ...]:
    """The lines of a unified diff that change something, each file's and hunk's place before them."""
    return tuple(
        line for line in diff.splitlines() if line.startswith(("+", "-", "@@")) and not line.startswith("---")
    )
