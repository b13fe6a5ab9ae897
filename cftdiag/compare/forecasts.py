"""Forecasts of two checks, and the regimes of two forecasts or plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.compare.change import Change, Effect
from cftdiag.compare.normal import plain, symbols

Forecast = Mapping[str, Any]


def compare_forecasts(before: Forecast, after: Forecast, alike: bool) -> list[Change]:
    """What a forecast says beyond the compiles of the report: limits, and, of a data file, compiles by step,
    regimes, what is left after warming, ranks that diverge.
    """
    changes = []

    def count(what: str, old: Any, new: Any, comparable: bool, severity: str = "warning") -> None:
        if old == new:
            return
        effect: Effect = "other"
        if comparable and old is not None and new is not None:
            effect = "worse" if new > old else "better"
        changes.append(
            Change(
                section="forecast",
                what=what,
                before=old,
                after=new,
                effect=effect,
                severity=severity if effect == "worse" else "info",
            )
        )

    if bool(before.get("limit_hit")) != bool(after.get("limit_hit")):
        count(
            "recompile limit hit", bool(before.get("limit_hit")), bool(after.get("limit_hit")), True, "error"
        )
    sources = [dict(f["data"]) if f.get("data") else None for f in (before, after)]
    if None in sources:
        return changes
    data = [_data(source or {}) for source in sources]
    if data[0] != data[1]:
        changes.append(Change(section="conditions", what="data", before=data[0], after=data[1]))
    same = alike and data[0] == data[1]
    for name in ("compiles", "recompiles"):
        count(name, before.get(name), after.get(name), same)
    left = [len(f["warmed"]["steps"]) if f.get("warmed") else None for f in (before, after)]
    count("compiles left after warming", left[0], left[1], same)
    apart = [(f.get("divergence") or {}).get("count") or 0 for f in (before, after)]
    count("steps at which ranks diverge", apart[0], apart[1], same)
    if before.get("stopped") != after.get("stopped"):
        changes.append(
            Change(
                section="forecast", what="stopped", before=before.get("stopped"), after=after.get("stopped")
            )
        )
    changes += _steps(before.get("steps") or (), after.get("steps") or ())
    return [*changes, *compare_regimes(before.get("regimes") or (), after.get("regimes") or ())]


def _data(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source.get(name) for name in ("samples", "tokens", "longest", "steps")}


def _steps(before: Sequence[Forecast], after: Sequence[Forecast]) -> list[Change]:
    """Compiles by (step, batch, length)."""

    def by_shape(steps: Sequence[Forecast]) -> dict[tuple[Any, ...], Counter[tuple[str, str]]]:
        found: dict[tuple[Any, ...], Counter[tuple[str, str]]] = {}
        for s in steps:
            key = (s.get("step"), s.get("batch_size"), s.get("length"))
            guard = "" if s.get("guard") is None else plain(s["guard"])
            found.setdefault(key, Counter())[str(s.get("cause") or "first"), guard] += 1
        return found

    a, b = by_shape(before), by_shape(after)
    changes = []
    for key in dict.fromkeys([*a, *b]):
        old, new = a.get(key, Counter()), b.get(key, Counter())
        gone, added = list((old - new).elements()), list((new - old).elements())
        while gone or added:
            lost, come = gone.pop() if gone else None, added.pop() if added else None
            changes.append(
                Change(
                    section="forecast",
                    what=f"compile at step {key[0]}, {key[1]} x {key[2]}",
                    before=_because(lost),
                    after=_because(come),
                    effect="other" if lost and come else ("worse" if come else "better"),
                )
            )
    return changes


def _because(found: tuple[str, str] | None) -> str | None:
    return None if found is None else f"{found[0]}: {found[1]}" if found[1] else found[0]


def compare_regimes(before: Sequence[Forecast], after: Sequence[Forecast]) -> list[Change]:
    """Regions of batch x length by their bounds; their names are numbers of this forecast alone."""
    a, b = ({_region(r): r for r in regimes} for regimes in (before, after))
    changes = [
        Change(
            section="regimes",
            what=key or "any batch and length",
            before=_representative(a[key]) if key in a else None,
            after=_representative(b[key]) if key in b else None,
        )
        for key in dict.fromkeys([*a, *b])
        if (key in a) != (key in b)
    ]
    changes += [
        Change(section="regimes", what=key or "any batch and length", field="visits", before=a[key]["visits"], after=b[key]["visits"])
        for key in a
        if key in b and a[key].get("visits") != b[key].get("visits") and None not in (a[key].get("visits"), b[key].get("visits"))
    ]  # fmt: skip
    return changes


def _region(regime: Forecast) -> str:
    bounds = sorted(symbols(str(bound)) for bound in regime.get("bounds") or ())
    return ", ".join([*bounds, *(str(v) for v in regime.get("variants") or () if v)])


def _representative(regime: Forecast) -> str:
    shape = regime.get("representative") or {}
    return f"warm with {shape.get('batch_size')} x {shape.get('length')}"
