"""The identity of a finding over time: what stays when lines move, lengths change and the code is checked out
elsewhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cftdiag import guards
from cftdiag.compare.normal import file_name, plain

#: A guard that holds one value: the value is the batch's, what is tested is the finding's.
_ONE_VALUE = ("fixed", "exclusion")


def fingerprint(finding: Mapping[str, Any]) -> str:
    """16 hex digits of the sha256 of kind, cause, place and guard. Line numbers, counts, steps, lengths,
    blocks and severity have no part in it.
    """
    parts = [
        str(finding.get("kind")),
        str(finding.get("cause")),
        *place(finding),
        guard_key(finding.get("guard")),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def fingerprints(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """One for each finding of a report, all different: the second of two alike ends with ``-2``."""
    met: Counter[str] = Counter()
    found = []
    for finding in findings:
        print_ = fingerprint(finding)
        met[print_] += 1
        found.append(print_ if met[print_] == 1 else f"{print_}-{met[print_]}")
    return found


def place(finding: Mapping[str, Any]) -> tuple[str, str, str]:
    """(file, function, source line) of a finding, each as any checkout has it."""
    where = finding.get("where") or {}
    return (
        file_name(where.get("file")),
        plain(where.get("function") or ""),
        " ".join(str(where.get("code") or "").split()),
    )


def guard_key(guard: str | None) -> str:
    """What a guard tests, without the value that it was compiled for and the one that it met."""
    if not guard:
        return ""
    text, _ = guards.comment(guard)
    condition = guards.read(text)
    if condition.kind == "other" or (condition.stage == "shape" and condition.form not in _ONE_VALUE):
        return plain(condition.text)
    index = "" if condition.index is None else f"[{condition.index}]"
    return plain(f"{condition.kind} {condition.source}{index} {condition.key or ''}")
