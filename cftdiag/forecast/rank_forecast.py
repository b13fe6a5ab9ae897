"""The forecast of one rank as it leaves its pass: compiles in the order of the data, regimes, ways to pad.

Torch-free. What the report shows as it is (regimes, suggestions) is held JSON-ready, in the form of
``CheckReport.forecast``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastCompile:
    """One graph of a forward region, its backward's seconds included. Step 0 is the warm-up."""

    compile_id: str | None
    step: int
    microstep: int
    batch_size: int
    length: int
    variant: str = ""
    block: str | None = None
    code: str | None = None
    status: str | None = None
    seconds: float = 0.0
    recompile: bool = False
    guard: str | None = None
    """The guard that failed, of a recompile."""
    regime: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankForecast:
    """The forecast of one rank over all shapes of its data."""

    compiles: tuple[ForecastCompile, ...]
    limit_hit: Mapping[str, Any] | None = None
    stopped: str | None = None
    regimes: tuple[Mapping[str, Any], ...] = ()
    exact: bool = True
    """The bounds of the regimes tell for every shape what the guards told."""
    wrong: int = 0
    """Shapes for which they do not."""
    eager: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suggestions: tuple[Mapping[str, Any], ...] = ()
    points: tuple[tuple[str | None, int, int, int], ...] = ()
    """(regime id, batch size, length, visits)."""
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    mistaken: tuple[tuple[int, int, str], ...] = ()
    """(batch size, length, variant) of shapes that were foreseen to hit and compiled when run."""
    notes: tuple[str, ...] = ()

    @property
    def recompiles(self) -> int:
        """Compiles that a failed guard asked for."""
        return sum(c.recompile for c in self.compiles)

    @property
    def seconds(self) -> float:
        """Seconds of compiling in all."""
        return round(sum(c.seconds for c in self.compiles), 3)

    @property
    def steps(self) -> tuple[int, ...]:
        """Optimizer steps at which something compiles, in order."""
        return tuple(dict.fromkeys(c.step for c in self.compiles))
