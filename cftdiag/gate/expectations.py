"""What a test expects of a check, and what of it was not met."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.findings import at_least
from cftdiag.options import FAIL_ON


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectations:
    """All of them must hold; None asks for nothing."""

    fail_on: str = "error"
    """Severity of a finding that nobody has accepted from which on it fails the test."""
    fullgraph: bool | None = None
    """True: every block is captured whole."""
    max_graph_breaks: int | None = None
    """Over all blocks."""
    max_recompiles: int | None = None
    max_compiles: int | None = None
    max_compile_seconds: float | None = None
    """Of this machine, all compiles together."""
    coverage: float | None = None
    """Least share of the parameters that is in blocks which run compiled code, 0 to 1."""

    def __post_init__(self) -> None:
        if self.fail_on not in FAIL_ON:
            raise ValueError(f"fail_on {self.fail_on!r} is unknown; use one of {', '.join(FAIL_ON)}")
        if self.coverage is not None and not 0 <= self.coverage <= 1:
            raise ValueError(f"coverage {self.coverage!r} is no share; give a number from 0 to 1")

    def unmet(self, data: Mapping[str, Any], *, coverage: float | None = None) -> list[str]:
        """A line for each expectation that an annotated check does not meet. ``coverage`` is the share that is
        compiled, where the check does not tell it.
        """
        if data["verdict"] == "error":
            return [f"no conclusion: {'; '.join(map(str, data['undetermined'])) or 'the check did not end'}"]
        lines = []
        new = [f for f in data["findings"] if not f.get("accepted")]
        if self.fail_on != "never":
            failing = [f for f in new if at_least(str(f["severity"]), self.fail_on)]
            if failing:
                causes = ", ".join(dict.fromkeys(f"{f['kind']} {f['cause']}" for f in failing))
                lines.append(f"findings at or above {self.fail_on}: {causes}")
        if self.fullgraph:
            broken = [
                b["fqn"]
                for b in data["blocks"]
                if b["fullgraph"] is False or not (b["graphs"] or not b.get("graphs_counted", True))
            ]
            if broken:
                more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
                lines.append(f"not captured whole: {', '.join(broken[:3])}{more}")
        for name, limit, number in (
            ("graph breaks", self.max_graph_breaks, _sum(data, "graph_breaks")),
            ("recompiles", self.max_recompiles, _recompiles(data)),
            ("compiles", self.max_compiles, len(data["compiles"])),
            ("seconds of compiling", self.max_compile_seconds, _seconds(data)),
        ):
            if limit is not None and number > limit:
                lines.append(f"{number:g} {name}, at most {limit:g} expected")
        if self.coverage is not None:
            lines += _uncovered(data, self.coverage, coverage)
        return lines


def _uncovered(data: Mapping[str, Any], least: float, measured: float | None) -> list[str]:
    told = (data.get("coverage") or {}).get("parameters")
    share = measured if told is None else told
    if share is None:
        return ["coverage is known for a model of one's own and for a script; drop it here"]
    return (
        [f"{share:.1%} of the parameters are compiled, at least {least:.1%} expected"]
        if share < least
        else []
    )


def _sum(data: Mapping[str, Any], key: str) -> int:
    return sum(int(b.get(key) or 0) for b in data["blocks"])


def _recompiles(data: Mapping[str, Any]) -> int:
    """Those of the forecast, which counts code that blocks share once; a script's have no forecast."""
    told = (data.get("forecast") or {}).get("recompiles")
    return _sum(data, "recompiles") if told is None else int(told)


def _seconds(data: Mapping[str, Any]) -> float:
    return round(sum(float(c.get("seconds") or 0.0) for c in data["compiles"]), 3)
