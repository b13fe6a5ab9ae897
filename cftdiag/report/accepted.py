"""What a baseline and comments in the source accepted, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cftdiag.report import wording


def new_findings(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings that nobody has accepted."""
    return [f for f in data["findings"] if not f.get("accepted")]


def accepted_lines(data: Mapping[str, Any]) -> list[str]:
    """A line for each accepted finding: ``warning recompile seq_len at model.py:30: known (baseline)``."""
    lines = []
    for finding in data["findings"]:
        if not finding.get("accepted"):
            continue
        place = wording.where(finding)
        why = how_accepted(finding)
        at = f" at {place}" if place else ""
        lines.append(f"{finding.get('severity')} {finding.get('kind')} {finding.get('cause')}{at}: {why}")
    return lines


def how_accepted(finding: Mapping[str, Any]) -> str:
    """``known (baseline)``, ``accepted: REASON``; empty for a new one."""
    how = finding.get("accepted")
    if not how:
        return ""
    return f"accepted: {how['reason']}" if how.get("by") == "comment" else "known (baseline)"


def gate_notes(data: Mapping[str, Any]) -> list[str]:
    """What is to be put in order: comments that accept nothing, a baseline that holds what is gone."""
    gate = data.get("gate") or {}
    notes = []
    for comment in gate.get("unused") or ():
        place = f"{wording.short_path(str(comment['file']))}:{comment['line']}"
        text = (
            f"# cftdiag: ignore[{', '.join(comment['causes'])}]" if comment["causes"] else "# cftdiag: ignore"
        )
        notes.append(f"{place}: {text} {comment['problem'] or 'accepts nothing in this check; remove it'}")
    unmet = gate.get("unmet") or ()
    if unmet:
        names = ", ".join(dict.fromkeys(f"{e['kind']} {e['cause']}" for e in unmet))
        notes.append(
            f"{wording.plural(len(unmet), 'finding')} of the baseline not met ({names}); write it again with --write-baseline"
        )
    return notes


def gate_line(data: Mapping[str, Any]) -> str | None:
    """``1 new finding, 2 known (baseline), 1 accepted (comment)``; None where nothing was decided and no
    baseline given.
    """
    gate = data.get("gate")
    if not gate:
        return None
    parts = [f"{wording.plural(gate['new'], 'new finding')}"]
    parts += [f"{gate['baseline']} known (baseline)"] if gate["baseline"] else []
    parts += [f"{gate['comment']} accepted (comment)"] if gate["comment"] else []
    return ", ".join(parts)
