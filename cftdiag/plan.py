"""The plan of a run: what a check proved, in a file that the trainer warms and the monitor holds a run
against. Torch-free.

A plan is good for one configuration. Its fingerprint names every part that decides what compiles; a plan made
for another is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = "cftdiag.plan/1"

#: What a plan was made for; each decides which graphs come out.
FINGERPRINT = (
    "torch",
    "transformers",
    "config_sha",
    "attn",
    "dtype",
    "method",
    "objective",
    "ac",
    "scope",
    "world_size",
    "compile_kwargs",
    "target",
    "depth",
)
#: What a plan meant that was written before there was a choice.
_SINCE = {"objective": "sft"}
#: Keys of a model's config that name it or tell where it came from, and change no graph.
_NAMES = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "_commit_hash",
        "architectures",
        "dtype",
        "torch_dtype",
    }
)
_NAMES_ATTN = frozenset(
    {
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_internal",
        "_experts_implementation",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of torch that the plan relies on: a dotted config name or a compile option, and its value."""

    key: str
    value: Any
    unsafe: bool = False
    verified: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regime:
    """One region of batch x length that shares its graphs.

    ``bounds`` are conditions over ``B`` (batch size) and ``S`` (length), all of which hold inside; a shape
    belongs to the first regime of the plan whose bounds hold and whose variants have it. ``representative``
    is (batch size, length, variant) to warm it with.
    """

    id: str
    bounds: tuple[str, ...]
    representative: tuple[int, int, str]
    variants: tuple[str, ...] = ("",)

    def covers(self, batch_size: int, length: int, variant: str | None = None) -> bool:
        """True when a shape lies inside; a variant of None is not asked for."""
        from cftdiag.forecast.bounds import holds

        return (variant is None or variant in self.variants) and bool(holds(self.bounds, batch_size, length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A ``cftdiag.plan/1`` object."""

    fingerprint: Mapping[str, Any]
    settings: tuple[Setting, ...] = ()
    regimes: tuple[Regime, ...] = ()
    forecast: tuple[Mapping[str, Any], ...] = ()
    """{step, regime, cause} of each compile of the run after warming; empty when warming leaves none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", {**_SINCE, **self.fingerprint})

    @property
    def warm(self) -> tuple[tuple[int, int, str], ...]:
        """(batch size, length, variant) of the shapes to run before step 1, in this order on every rank."""
        return tuple(dict.fromkeys(r.representative for r in self.regimes))

    @property
    def unsafe(self) -> tuple[Setting, ...]:
        """Settings that give up a safety check of torch; a run that uses them says so."""
        return tuple(s for s in self.settings if s.unsafe)

    def regime_of(self, batch_size: int, length: int, variant: str | None = None) -> str | None:
        """Id of the regime of a shape, None for a shape that the plan does not cover."""
        return next((r.id for r in self.regimes if r.covers(batch_size, length, variant)), None)

    def to_dict(self) -> dict[str, Any]:
        """The ``cftdiag.plan/1`` object."""
        return {
            "schema": SCHEMA,
            "fingerprint": dict(self.fingerprint),
            "settings": [dataclasses.asdict(s) for s in self.settings],
            "regimes": [_regime_dict(r) for r in self.regimes],
            "forecast": [dict(f) for f in self.forecast],
        }

    def write(self, path: str | Path) -> None:
        """Write the plan as JSON; raises ``ValueError`` for a path that cannot be written."""
        try:
            Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror or error}; name another file") from error

    def check(self, expect: Mapping[str, Any], name: str = "the plan") -> None:
        """Compare with the configuration of a run; raises ``ValueError`` naming the first field that differs.

        ``expect`` maps some or all names of :data:`FINGERPRINT` to the run's values.
        """
        unknown = [key for key in expect if key not in FINGERPRINT]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no field of a plan's fingerprint; one of {', '.join(FINGERPRINT)}"
            )
        for key in FINGERPRINT:
            if key in expect and _plain(self.fingerprint.get(key)) != _plain(expect[key]):
                raise ValueError(
                    f"{name} was made for {key} {_shown(self.fingerprint.get(key))}, this run has {_shown(expect[key])}; "
                    "make the plan again with `cftdiag check --plan`"
                )


def _regime_dict(regime: Regime) -> dict[str, Any]:
    batch, length, variant = regime.representative
    return {
        "id": regime.id,
        "bounds": list(regime.bounds),
        "representative": {"batch_size": batch, "length": length, "variant": variant},
        "variants": list(regime.variants),
    }


def _plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    return json.loads(json.dumps(value, sort_keys=True, default=str))


def _shown(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def config_sha(config: Any) -> str:
    """First 16 hex digits of the sha256 of a model's config, without the keys that name it, its dtype and its
    attention (fields of their own).

    ``config`` is a mapping or has ``to_dict()``.
    """
    data = dict(config) if isinstance(config, Mapping) else config.to_dict()
    text = json.dumps(_layout(data), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _layout(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _layout(v) for k, v in value.items() if k not in _NAMES and k not in _NAMES_ATTN}
    if isinstance(value, (list, tuple)):
        return [_layout(v) for v in value]
    return value


def make_plan(
    fingerprint: Mapping[str, Any], forecast: Mapping[str, Any], settings: Sequence[Setting] = ()
) -> Plan:
    """A plan from the forecast of a check (:func:`cftdiag.forecast.all_ranks.forecast_dict`).

    ``forecast["warmed"]`` is the forecast of the same run after warming, where it was made; without it the
    plan foresees no compile after warming.
    """
    missing = [key for key in FINGERPRINT if key not in fingerprint]
    if missing:
        raise ValueError(f"a plan's fingerprint needs {missing[0]}")
    warmed = forecast.get("warmed") or {}
    return Plan(
        fingerprint={key: _plain(fingerprint[key]) for key in FINGERPRINT},
        settings=tuple(settings),
        regimes=tuple(_regime(r, i) for i, r in enumerate(forecast.get("regimes") or ())),
        forecast=tuple(
            {"step": s["step"], "regime": s.get("regime"), "cause": s.get("cause")}
            for s in warmed.get("steps") or ()
            if s["step"]
        ),
    )


def load_plan(path: str | Path, expect: Mapping[str, Any] | None = None) -> Plan:
    """Read a plan and, with ``expect``, hold its fingerprint against a run's.

    Raises ``ValueError`` with one line: the file cannot be read, is no plan (the field is named), or was made
    for another configuration.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the plan {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(
            f"{path}: is not JSON ({error}); write a plan with `cftdiag check --plan`"
        ) from error
    plan = _parse(data, str(path))
    if expect is not None:
        plan.check(expect, f"plan {path}")
    return plan


def _parse(data: Any, path: str) -> Plan:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(
            f"{path}: is no {SCHEMA} object (schema {found!r}); write a plan with `cftdiag check --plan`"
        )
    try:
        fingerprint = {**_SINCE, **_mapping(data["fingerprint"], "fingerprint")}
        for key in FINGERPRINT:
            if key not in fingerprint:
                raise ValueError(f"fingerprint.{key} is missing")
        return Plan(
            fingerprint=fingerprint,
            settings=tuple(_setting(s, i) for i, s in enumerate(_list(data["settings"], "settings"))),
            regimes=tuple(_regime(r, i) for i, r in enumerate(_list(data["regimes"], "regimes"))),
            forecast=tuple(
                _mapping(f, f"forecast[{i}]") for i, f in enumerate(_list(data["forecast"], "forecast"))
            ),
        )
    except KeyError as error:
        raise ValueError(f"{path}: malformed plan: {error.args[0]} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: malformed plan: {error}") from error


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r:.80}, not an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r:.80}, not a list")
    return value


def _setting(value: Any, i: int) -> Setting:
    data = _mapping(value, f"settings[{i}]")
    if not isinstance(data.get("key"), str):
        raise ValueError(f"settings[{i}].key is {data.get('key')!r}, not a name")
    return Setting(
        key=data["key"],
        value=data.get("value"),
        unsafe=bool(data.get("unsafe")),
        verified=data.get("verified"),
    )


def _regime(value: Any, i: int) -> Regime:
    from cftdiag.forecast.bounds import read

    data, where = _mapping(value, f"regimes[{i}]"), f"regimes[{i}]"
    bounds = tuple(map(str, _list(data.get("bounds"), f"{where}.bounds")))
    try:
        read(bounds)
    except ValueError as error:
        raise ValueError(f"{where}.bounds: {error}") from error
    shape = _mapping(data.get("representative"), f"{where}.representative")
    variant = str(shape.get("variant") or "")
    return Regime(
        id=str(data.get("id")),
        bounds=bounds,
        representative=(_positive(shape, "batch_size", where), _positive(shape, "length", where), variant),
        variants=tuple(map(str, data.get("variants") or (variant,))),
    )


def _positive(shape: Mapping[str, Any], name: str, where: str) -> int:
    number = shape.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{where}.representative.{name} is {number!r}, not a positive whole number")
    return number
