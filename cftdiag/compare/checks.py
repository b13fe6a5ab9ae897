"""Two checks, or two documents in the shape of a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Effect, Figure
from cftdiag.compare.findings import compare_findings
from cftdiag.compare.forecasts import compare_forecasts
from cftdiag.compare.normal import file_name, plain

Check = Mapping[str, Any]

VERDICTS = ("viable", "viable_with_recompiles", "not_viable", "error")
_VERDICT_SEVERITY = {"viable_with_recompiles": "warning", "not_viable": "error", "error": "error"}

#: Share by which a predicted figure may differ and still be the same.
_TOLERANCE = 0.001

#: Parts of a request without which two checks still ask the same: names, and what follows from the model.
_NAMES = ("name", "type", "weights", "model_class", "model_type")


def compare_checks(before: Check, after: Check, *, subjects: bool = True) -> list[Change]:
    """All changes but the figures. Without ``subjects`` the requests are not held against each other (a check
    and a run describe theirs in other words).
    """
    asked = _conditions(before, after) if subjects else []
    # what a check without a conclusion counted is what it came to, no more
    alike = all(c.what in _NAMES for c in asked) and "error" not in (before["verdict"], after["verdict"])
    return [
        *compare_verdicts(str(before["verdict"]), str(after["verdict"])),
        *_depths(before, after),
        *compare_findings(before["findings"], after["findings"]),
        *_blocks(before["blocks"], after["blocks"], alike),
        *_compiles(before["compiles"], after["compiles"], alike),
        *compare_forecasts(before.get("forecast") or {}, after.get("forecast") or {}, alike),
        *_coverage(before.get("coverage") or {}, after.get("coverage") or {}),
        *_payoff(before.get("payoff") or {}, after.get("payoff") or {}),
        *asked,
        *compare_environments(before["environment"], after["environment"]),
        *compare_notes(before["undetermined"], after["undetermined"]),
    ]


def figures(before: Check, after: Check) -> list[Figure]:
    """Seconds and memory of this machine."""
    pairs = {
        "compile": (_compile_seconds(before), _compile_seconds(after), "s"),
        "check": (before["timing"].get("wall_s"), after["timing"].get("wall_s"), "s"),
        "peak memory": (before["timing"].get("peak_rss_gb"), after["timing"].get("peak_rss_gb"), "GB"),
    }
    return [
        Figure(name=name, before=a, after=b, unit=unit)
        for name, (a, b, unit) in pairs.items()
        if a is not None or b is not None
    ]


def _compile_seconds(check: Check) -> float | None:
    seconds = [float(c["seconds"]) for c in check["compiles"] if c.get("seconds") is not None]
    return round(sum(seconds), 3) if seconds else None


def compare_environments(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Versions that are not the same."""
    return [
        Change(section="environment", what=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def compare_verdicts(before: str, after: str) -> list[Change]:
    """Better or worse; no conclusion is the worst."""
    if before == after:
        return []
    worse = VERDICTS.index(after) > VERDICTS.index(before)
    return [
        Change(
            section="verdict",
            what="verdict",
            before=before,
            after=after,
            effect="worse" if worse else "better",
            severity=_VERDICT_SEVERITY.get(after, "info"),
        )
    ]


def _depths(before: Check, after: Check) -> list[Change]:
    changes = []
    for name in ("depth", "target"):
        if before.get(name) != after.get(name):
            changes.append(
                Change(section="verdict", what=name, before=before.get(name), after=after.get(name))
            )
    return changes


def _conditions(before: Check, after: Check) -> list[Change]:
    """What was asked for, as far as it differs."""
    a, b = before["subject"], after["subject"]
    changes = []
    for name in dict.fromkeys([*a, *b]):
        old, new = a.get(name), b.get(name)
        if name == "name":  # ``mine.py:build``, wherever that file is
            old, new = _subject_name(old), _subject_name(new)
        if old != new:
            changes.append(Change(section="conditions", what=name, before=old, after=new))
    return changes


def _subject_name(name: Any) -> str:
    file, colon, function = str(name).partition(":")
    return f"{file_name(file)}{colon}{function}"


# ---- blocks ----

#: Field of a block -> (effect, severity) of a change from one value to another.
_BLOCK_FIELDS = ("class", "graphs", "fullgraph", "graph_breaks", "recompiles")


def _blocks(before: Sequence[Check], after: Sequence[Check], alike: bool) -> list[Change]:
    a, b = ({str(block.get("fqn")): block for block in blocks} for blocks in (before, after))
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in dict.fromkeys([*a, *b]):
        old, new = a.get(name), b.get(name)
        if old is None or new is None:
            held: Mapping[str, Any] = old or new or {}
            groups.setdefault((held.get("class"), "", old is not None, new is not None, None), []).append(
                name
            )
            continue
        for key in _BLOCK_FIELDS:
            if old.get(key) != new.get(key):
                group = (new.get("class"), key, old.get(key), new.get(key), new.get("fullgraph"))
                groups.setdefault(group, []).append(name)
    changes = []
    for (cls, key, old_value, new_value, whole), names in groups.items():
        if key:
            effect, severity = _block_effect(key, old_value, new_value, whole)
        elif new_value:
            effect, severity = "other", "info"
        else:  # what was reported before and is not any more was asked for, or runs without a graph now
            effect, severity = ("worse", "warning") if alike else ("other", "info")
        changes.append(
            Change(
                section="blocks",
                what=str(cls),
                field=key,
                before=old_value if key else ("reported" if old_value else None),
                after=new_value if key else ("reported" if new_value else None),
                effect=effect,
                severity=severity,
                blocks=tuple(names),
            )
        )
    return changes


def _block_effect(key: str, old: Any, new: Any, whole: bool | None) -> tuple[Effect, str]:
    if key == "class" or (key == "fullgraph" and None in (old, new)):
        return "other", "info"
    if key == "fullgraph":
        return ("better", "info") if new else ("worse", "error")
    if key == "graphs" and (not old or not new):
        if old is None or new is None:
            return "other", "info"
        return ("better", "info") if new else ("worse", "error")
    effect: Effect = "worse" if (new or 0) > (old or 0) else "better"
    # more graphs are what breaks and recompiles make: these have the weight
    if effect == "better" or key == "graphs":
        return effect, "info"
    return effect, "error" if key == "graph_breaks" and whole is False else "warning"


# ---- compiles ----


def _compiles(before: Sequence[Check], after: Sequence[Check], alike: bool) -> list[Change]:
    changes = []
    if len(before) != len(after):
        effect, severity = more(len(before), len(after), alike)
        changes.append(
            Change(
                section="compiles",
                what="compiles",
                field="count",
                before=len(before),
                after=len(after),
                effect=effect,
                severity=severity,
            )
        )
    a, b = _by_place(before), _by_place(after)
    for key in dict.fromkeys([*a, *b]):
        old, new = a.get(key, Counter()), b.get(key, Counter())
        gone, added = list((old - new).elements()), list((new - old).elements())
        block, step, length = key
        what = ", ".join(
            text
            for text in (
                "" if step is None else f"step {step}",
                "" if length is None else f"length {length}",
                "" if block is None else f"in {block}",
            )
            if text
        )
        while gone or added:
            old_cause, new_cause = gone.pop() if gone else None, added.pop() if added else None
            effect = "other" if old_cause and new_cause else more(bool(old_cause), bool(new_cause), alike)[0]
            changes.append(
                Change(
                    section="compiles",
                    what=what,
                    field="cause",
                    before=old_cause,
                    after=new_cause,
                    effect=effect,
                )
            )
    return changes


def _by_place(compiles: Sequence[Check]) -> dict[tuple[Any, Any, Any], Counter[str]]:
    """Causes by (block, step, length); the first compile of a region has ``first``."""
    found: dict[tuple[Any, Any, Any], Counter[str]] = {}
    for c in compiles:
        key = (None if c.get("block") is None else plain(c["block"]), c.get("step"), c.get("length"))
        found.setdefault(key, Counter())[str(c.get("cause") or "first")] += 1
    return found


def more(before: int, after: int, alike: bool) -> tuple[Effect, str]:
    """(effect, severity) of a number of compiles: of other lengths or another model it tells nothing."""
    if not alike or before == after:
        return "other", "info"
    return ("worse", "warning") if after > before else ("better", "info")


# ---- the rest ----


def _coverage(before: Check, after: Check) -> list[Change]:
    changes = []
    for name in ("parameters", "flops"):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or round(old, 3) == round(new, 3):
            continue
        less = new < old
        changes.append(
            Change(
                section="coverage",
                what=name,
                before=old,
                after=new,
                effect="worse" if less else "better",
                severity="warning" if less else "info",
            )
        )
    return changes


def _payoff(before: Check, after: Check) -> list[Change]:
    """Predicted gain by compile scope and peak memory of a rank, of the same device and shape. What follows from
    this machine's compile seconds (the break-even) is left out.
    """
    same = all(before.get(key) == after.get(key) for key in ("target", "batch_size", "length", "world_size"))
    changes = []

    def note(what: str, field: str, old: Any, new: Any, less_is_worse: bool) -> None:
        a, b = (sum(v) if isinstance(v, list) else float(v) for v in (old, new))
        if abs(a - b) <= _TOLERANCE * max(abs(a), abs(b)):
            return
        worse = (b < a) is less_is_worse
        effect: Effect = ("worse" if worse else "better") if same else "other"
        changes.append(
            Change(
                section="payoff",
                what=what,
                field=field,
                before=old,
                after=new,
                effect=effect,
                severity="warning" if effect == "worse" else "info",
            )
        )

    gains = [{str(r["scope"]): r for r in found.get("scopes") or ()} for found in (before, after)]
    for scope, row in gains[0].items():
        other = gains[1].get(scope)
        if other is not None and row.get("gain") and other.get("gain"):
            note(f"scope {scope}", "gain", row["gain"], other["gain"], True)
    for name in ("eager", "compiled"):
        old, new = ((found.get("memory") or {}).get(name) for found in (before, after))
        if old and new:
            note(f"memory {name}", "peak bytes of a rank", old["peak"], new["peak"], False)
    return changes


def compare_notes(before: Iterable[Any], after: Iterable[Any]) -> list[Change]:
    """Notes that only one of the two has."""
    a, b = ({plain(note): str(note) for note in notes} for notes in (before, after))
    return [
        Change(section="undetermined", what="note", before=a.get(key), after=b.get(key))
        for key in dict.fromkeys([*a, *b])
        if (key in a) != (key in b)
    ]
