"""Two runs: what they have in the shape of a check, and what only runs have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Effect, Figure
from cftdiag.compare.checks import compare_environments, compare_notes, compare_verdicts
from cftdiag.compare.findings import compare_findings
from cftdiag.compare.normal import plain

Run = Mapping[str, Any]

#: Kind of event -> (its list in the report, weight of one more of it).
_EVENTS = {
    "compile": ("compiles", "info"),
    "recompile": ("recompiles", "warning"),
    "graph break": ("graph_breaks", "warning"),
    "limit hit": ("limit_hits", "error"),
    "error": ("errors", "error"),
}
_TIMES = ("steady_step_s", "compile_s", "first_step_compile_s", "waited_s", "wall_s")


def compare_runs(before: Run, after: Run) -> list[Change]:
    """Verdict, findings, events by block and cause, ranks apart, alarms, how it ended."""
    changes = compare_verdicts(str(before["verdict"]), str(after["verdict"]))
    for name in ("world_size", "ranks", "steps"):
        if before[name] != after[name]:
            changes.append(_change("conditions", name, before[name], after[name]))
    old, new = ((run.get("ended") or {}).get("exit_code") for run in (before, after))
    if old != new:
        changes.append(_change("conditions", "exit code", old, new))
    changes += compare_findings(before["findings"], after["findings"])
    for word, (key, severity) in _EVENTS.items():
        changes += _events(word, _counted(before, key), _counted(after, key), severity)
    apart, now_apart = (len(run["divergence"]) for run in (before, after))
    changes += _more("ranks", "steps at which ranks compiled apart", apart, now_apart, "warning")
    alarms = [Counter(str(x.get("kind")) for x in run["alarms"]) for run in (before, after)]
    for name in dict.fromkeys([*alarms[0], *alarms[1]]):
        changes += _more("ranks", f"alarm {name}", alarms[0][name], alarms[1][name], "info")
    changes += _caches(before.get("caches") or (), after.get("caches") or ())
    changes += compare_notes(before["problems"], after["problems"])
    return [*changes, *compare_environments(before["environment"], after["environment"])]


def run_figures(before: Run, after: Run) -> list[Figure]:
    """Seconds of both machines."""
    a, b = before["timing"], after["timing"]
    words = {name: name.removesuffix("_s").replace("_", " ") for name in _TIMES}
    return [
        Figure(name=words[name], before=a.get(name), after=b.get(name))
        for name in _TIMES
        if a.get(name) is not None or b.get(name) is not None
    ]


def _counted(run: Run, key: str) -> Counter[tuple[str, str]]:
    """Events by (block or code, cause), over all ranks."""
    rows = [r for r in run[key] if r.get("region") != "backward"]
    return Counter((plain(r.get("block") or r.get("code") or "?"), str(r.get("cause") or "")) for r in rows)


def _caches(before: Sequence[Run], after: Sequence[Run]) -> list[Change]:
    """Misses of a cache that are more or less, and which parts of the key are not those of any earlier lookup: a
    torch, a setting or a graph that changed.
    """
    changes = []
    for cache in dict.fromkeys(str(row["cache"]) for row in (*before, *after)):
        a, b = ([r for r in rows if str(r["cache"]) == cache] for rows in (before, after))
        missed = [sum(r["outcome"] == "miss" for r in rows) for rows in (a, b)]
        changes += _more("compiles", f"{cache} cache misses", missed[0], missed[1], "info")
        known: dict[str, set[str]] = {}
        for row in a:
            for name, digest in (row.get("parts") or {}).items():
                known.setdefault(name, set()).add(digest)
        new = dict.fromkeys(
            name
            for row in b
            if row["outcome"] == "miss"
            for name, digest in (row.get("parts") or {}).items()
            if known and digest not in known.get(name, ())
        )
        if new:
            changes.append(_change("compiles", f"{cache} cache key", None, ", ".join(new)))
    return changes


def _events(
    word: str, before: Counter[tuple[str, str]], after: Counter[tuple[str, str]], severity: str
) -> list[Change]:
    changes = []
    for key in dict.fromkeys([*before, *after]):
        block, cause = key
        what = f"{word} {cause}".strip()
        changes += _more("compiles", what, before[key], after[key], severity, blocks=(block,))
    return changes


def _more(
    section: str, what: str, before: int, after: int, severity: str, blocks: tuple[str, ...] = ()
) -> list[Change]:
    if before == after:
        return []
    worse = after > before
    return [
        _change(
            section,
            what,
            before,
            after,
            "worse" if worse else "better",
            severity if worse else "info",
            blocks,
        )
    ]


def _change(
    section: str,
    what: str,
    before: Any,
    after: Any,
    effect: Effect = "other",
    severity: str = "info",
    blocks: tuple[str, ...] = (),
) -> Change:
    return Change(
        section=section,
        what=what,
        before=before,
        after=after,
        effect=effect,
        severity=severity,
        blocks=blocks,
    )
