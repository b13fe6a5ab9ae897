"""What a rehearsal's batches say of regimes: which shapes compiled something, and which were served by what was
there. Torch-free.

A rehearsal sees the shapes that it met and nothing between them: its bounds are the shapes themselves.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cftdiag.findings import Finding
from cftdiag.plan import FINGERPRINT, Plan, Setting, make_plan

Shape = tuple[int, int]
"""(rows, length)."""


@dataclasses.dataclass(kw_only=True)
class _Regime:
    representative: Shape
    compiles: int = 1
    """Graphs of one code object: blocks of one class can differ in more than their shapes."""
    met: Counter[Shape] = dataclasses.field(default_factory=Counter)

    def to_dict(self, number: int) -> dict[str, Any]:
        """A row of ``forecast.regimes``."""
        rows, length = self.representative
        return {
            "id": f"r{number}",
            "bounds": [*_bounds("B", {b for b, _ in self.met}), *_bounds("S", {s for _, s in self.met})],
            "representative": {"batch_size": rows, "length": length, "variant": ""},
            "visits": sum(self.met.values()),
            "compiles": self.compiles,
        }


def forecast(batches: Sequence[Mapping[str, Any]], compiles: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """``regimes`` and ``points`` of ``CheckReport.forecast``: a new shape whose step compiles begins a regime, any
    other one belongs to the last that was begun for its number of rows, else to the last of all.
    """
    compiled: dict[tuple[int, int, int], Counter[str]] = {}
    for c in compiles:
        if c["batch_size"] and c["length"]:
            code = str(c.get("compile_id")).partition("/")[0]
            compiled.setdefault((c["step"], c["batch_size"], c["length"]), Counter())[code] += 1
    regimes: list[_Regime] = []
    of: dict[Shape, _Regime | None] = {}
    for batch in batches:
        for rows, length in batch["shapes"]:
            shape = (rows, length)
            if shape not in of:
                graphs = compiled.get((batch["step"], *shape))
                if graphs:
                    regimes.append(_Regime(representative=shape, compiles=max(graphs.values())))
                    of[shape] = regimes[-1]
                else:
                    alike = [r for r in regimes if r.representative[0] == rows] or regimes
                    of[shape] = alike[-1] if alike else None
            regime = of[shape]
            if regime is not None:
                regime.met[shape] += 1
    rows_of = {id(r): r.to_dict(i) for i, r in enumerate(regimes)}
    visits = Counter((b, s) for batch in batches for b, s in batch["shapes"])
    return {
        "regimes": list(rows_of.values()),
        "points": [
            [None if regime is None else rows_of[id(regime)]["id"], *shape, visits[shape]]
            for shape, regime in of.items()
        ],
    }


def _bounds(symbol: str, values: set[int]) -> list[str]:
    low, high = min(values), max(values)
    return [f"{symbol} == {low}"] if low == high else [f"{symbol} >= {low}", f"{symbol} <= {high}"]


def plan(report: Mapping[str, Any], findings: Iterable[Finding], settings: Mapping[str, Any]) -> Plan:
    """The compile plan of a rehearsal's report: its regimes to warm, the settings that it ran with and those that
    were proved. What a script does not tell of its model stays None in the fingerprint.
    """
    rows = [Setting(key=key, value=value, verified=None) for key, value in settings.items()]
    for finding in findings:
        for remedy in finding.remedies:
            change = remedy.change or {}
            if (
                remedy.verified
                and not remedy.unsafe
                and change
                and all(k.startswith("torch.") for k in change)
            ):
                known = {row.key for row in rows}
                rows += [Setting(key=k, value=v, verified=True) for k, v in change.items() if k not in known]
                break
    subject, versions = report["subject"], report["environment"]
    fingerprint: dict[str, Any] = dict.fromkeys(FINGERPRINT)
    fingerprint |= {
        "torch": versions["torch"],
        "transformers": versions.get("transformers"),
        "world_size": subject["world_size"],
        "compile_kwargs": subject["compile_kwargs"],
        "target": report["target"],
        "depth": report["depth"],
    }
    # as often as one code compiles in it
    regimes = [
        {**r, "id": r["id"] + "'" * i} for r in report["forecast"]["regimes"] for i in range(r["compiles"])
    ]
    return make_plan(fingerprint, {**report["forecast"], "regimes": regimes}, rows)
