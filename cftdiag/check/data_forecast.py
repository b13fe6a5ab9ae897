"""The driver's side of ``--data``: from the user's lengths to a forecast, its regime map and a plan.
Torch-free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.errors import InputError
from cftdiag.events import Event
from cftdiag.findings import Finding
from cftdiag.forecast.all_ranks import forecast_dict, warm_shapes
from cftdiag.forecast.lengths import Data, DataOptions, Shape, distinct_ranks, read_data
from cftdiag.forecast.rank_forecast import RankForecast
from cftdiag.options import CheckOptions
from cftdiag.passes.messages import SweepTask
from cftdiag.plan import Plan, Setting, make_plan
from cftdiag.subject import Origin

#: Distinct lengths of the data that the passes before the forecast run.
FIRST = 3
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")


def read(options: CheckOptions, origin: Origin) -> Data:
    """Read the file and batch it as training will. Raises :class:`InputError`."""
    assert options.data.path is not None
    if origin.type == "file":
        raise InputError(
            "--data makes batches of its own, which only a catalogue or config model takes; put your lengths into build()"
        )
    config = origin.config
    positions = next((config[name] for name in _POSITIONS if isinstance(config.get(name), int)), None)
    rows = options.subject.batch_size
    if rows is None and options.data.max_tokens_per_gpu is None:
        rows = 1
    return read_data(
        DataOptions(
            path=options.data.path,
            batch_size=rows,
            max_tokens_per_gpu=options.data.max_tokens_per_gpu,
            pad_to_multiple_of=options.subject.pad_to_multiple_of,
            packed=options.subject.packed,
            shuffle_seed=options.data.shuffle_seed,
            world_size=options.parallel.world_size,
            drop_last=options.patch.drop_last,
            max_positions=positions,
            over_long=options.data.over_long,
        )
    )


def first_options(options: CheckOptions, data: Data) -> CheckOptions:
    """Options of the passes that say whether the blocks capture at all: the first distinct lengths of the
    first rank.
    """
    shapes = data.ranks[0].shapes
    lengths = tuple(dict.fromkeys(s.length for s in shapes if s.batch_size == shapes[0].batch_size))[:FIRST]
    return options.with_(
        lengths=lengths,
        batch_size=shapes[0].batch_size,
        data=None,
        max_tokens_per_gpu=None,
        shuffle_seed=None,
        pad_to_multiple_of=None,
        drop_last=False,
    )


def tasks(data: Data, warm: Sequence[Shape] = ()) -> tuple[SweepTask, ...]:
    """What a sweep's pass needs, for the first rank of each group of ranks that see the very same shapes."""
    by_rank = {r.rank: r.shapes for r in data.ranks}
    return tuple(
        SweepTask(rank=rank, shapes=by_rank[rank], warm=tuple(warm)) for rank in distinct_ranks(data)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swept:
    """The sweeps of all groups of ranks, by the first rank of each, and the same with every regime warmed."""

    events: tuple[Event, ...]
    """Those of the first rank."""
    assumed: tuple[str, ...]
    cold: Mapping[int, RankForecast]
    warmed: Mapping[int, RankForecast]

    @property
    def lead(self) -> RankForecast:
        """The sweep of the first rank."""
        return self.cold[min(self.cold)]


def by_step(events: Sequence[Event], swept: RankForecast) -> tuple[list[int | None], list[int | None]]:
    """(lengths, batch sizes) by step, as the diagnosis wants them, filled only at steps that something
    happened at.
    """
    last = max((e.step for e in events), default=0)
    lengths: list[int | None] = [None] * last
    sizes: list[int | None] = [None] * last
    for compiled in swept.compiles:
        if 0 < compiled.step <= last:
            lengths[compiled.step - 1], sizes[compiled.step - 1] = compiled.length, compiled.batch_size
    return lengths, sizes


def forecast(
    data: Data,
    swept: Mapping[int, RankForecast],
    warmed: Mapping[int, RankForecast],
    causes: Mapping[str, Any],
    depth: str,
) -> dict[str, Any]:
    """``CheckReport.forecast``; under ``warmed`` what is left to compile once every regime was warmed before
    step 0.
    """
    note = "without Inductor's guards" if depth in ("trace", "joint") else "predicted: no device took part"
    found = forecast_dict(data, swept, causes=causes, note=note)
    if warmed:
        after = forecast_dict(data, warmed, causes={}, note=note)
        found["warmed"] = {
            key: after[key] for key in ("compiles", "recompiles", "limit_hit", "steps", "seconds")
        }
        # what was compiled at step 0 is the warming itself
        found["warmed"]["steps"] = [s for s in after["steps"] if s["step"]]
    return found


def warm_of(data: Data, swept: Mapping[int, RankForecast]) -> list[Shape]:
    """Shapes that warm every regime of the first rank."""
    return warm_shapes(forecast_dict(data, swept))


def plan(
    fingerprint: Mapping[str, Any],
    found: Mapping[str, Any],
    findings: Sequence[Finding],
    options: CheckOptions,
) -> Plan:
    """The plan of a forecast: the settings that the check ran with, and those that were proved to remove a
    finding.
    """
    settings = [
        Setting(key=key, value=value, verified=None) for key, value in options.patch.torch_config.items()
    ]
    for finding in findings:
        proved = [
            r
            for r in finding.remedies
            if r.verified and not r.unsafe and r.change and all(k.startswith("torch.") for k in r.change)
        ]
        for key, value in (proved[0].change or {}).items() if proved else ():
            if key not in {s.key for s in settings}:
                settings.append(Setting(key=key, value=value, verified=True))
    return make_plan(fingerprint, found, settings)
