"""Whether two runs may be compared: what differs between them beside what they are compared for. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: Two losses of one step differ by more than this share: it is another model, or other data.
LOSS_APART = 0.05
#: Facts of a process that decide how fast it is, whatever it compiles.
_PLACE = {
    "torch": "torch",
    "device": "device",
    "threads": "threads",
    "world_size": "ranks",
}


def differences(
    base: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    batches: tuple[Sequence[Any], Sequence[Any]] = ((), ()),
    losses: tuple[float | None, float | None] = (None, None),
    may_differ: Collection[str] = (),
) -> list[str]:
    """What differs, each as ``ranks 2, not 1``: the other's value, then the base's. ``batches`` are the shapes of
    each step of both, ``losses`` those of the first step. What ``may_differ`` names (``parameters``,
    ``optimizer``, ``batches``, ``loss``) is not looked at.
    """
    found = [
        f"{name} {other.get(key)}, not {base.get(key)}"
        for key, name in _PLACE.items()
        if base.get(key) != other.get(key)
    ]
    if "parameters" not in may_differ and base.get("parameters") != other.get("parameters"):
        found.append(f"{_parameters(other)}, not {_parameters(base)}")
    if "optimizer" not in may_differ and base.get("optimizer") != other.get("optimizer"):
        found.append(f"optimizer {other.get('optimizer')}, not {base.get('optimizer')}")
    if "batches" not in may_differ:
        for step, (mine, yours) in enumerate(zip(*batches, strict=False), 1):
            if mine != yours and mine and yours:
                found.append(f"batches {_shapes(yours)} in step {step}, not {_shapes(mine)}")
                break
    mine, yours = losses
    if (
        "loss" not in may_differ
        and mine is not None
        and yours is not None
        and abs(mine - yours) > LOSS_APART * max(abs(mine), abs(yours))
    ):
        found.append(
            f"loss {yours:.4g} in step 1, not {mine:.4g} (another model, other data, or no fixed seed)"
        )
    return found


def _parameters(facts: Mapping[str, Any]) -> str:
    counts = facts.get("parameters") or {}
    return (
        " and ".join(f"{count:,} {dtype}" for dtype, count in counts.items()) + " parameters trained"
        if counts
        else "no parameters known"
    )


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    return " ".join(f"{rows}x{length}" for rows, length in shapes)
