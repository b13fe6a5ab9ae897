"""Holds a prediction against what really happened. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def differences(
    predicted: Mapping[str, Any], true: Mapping[str, Any], whole: Mapping[str, Any] | None = None
) -> list[str]:
    """One sentence for each thing that a report says otherwise; [] when all agrees.

    ``true`` is the run as the program asks for it, ``whole`` the one with fullgraph=True.
    """
    if "error" in predicted:
        return [f"the check ended without a report: {predicted['error']}"]
    found = _raised(predicted, true)
    if true["raised"] and not found:
        return []  # the step that failed was foretold; what comes after it depends on the program
    wanted, told = _counted(true["compiles"]), _counted(predicted["compiles"])
    for step, block in sorted(wanted.keys() | told.keys(), key=str):
        if wanted[step, block] != told[step, block]:
            found.append(
                f"step {step}, {block}: {told[step, block]} compiles predicted, {wanted[step, block]} true"
            )
    found += _sets("blocks that are called", set(predicted["blocks"]), set(true["calls"]))
    if true["left_out"]:
        found.append(f"layers that are no block: {', '.join(true['left_out'][:4])}")
    places = {place for _, _, place in true["breaks"]}
    # fullgraph=True captures some of what breaks otherwise, and is refused further on
    further = set() if whole is None else set(whole["refused_at"])
    found += _sets("places of breaks", set(predicted["breaks"]) - (further - places), places)
    # torch logs a break and a limit once for a code object; blocks that share it meet them, too
    kinds = true["kinds"]
    for what, told_of, wanted_of, kind in (
        ("blocks with a break", predicted["broken"], [b for _, b, _ in true["breaks"]], 0),
        ("blocks at the limit", predicted["limited"], [b for _, b in true["limits"]], 1),
    ):
        alike = {kinds[b][kind] for b in wanted_of if b is not None}
        least = {b for b in wanted_of if b is not None}
        found += _sets(what, {b for b in told_of if b in least or kinds[b][kind] not in alike}, least)
    if whole is not None:
        asked = {b: told for b, told in predicted["fullgraph"].items() if b not in predicted["limited"]}
        found += _fullgraph(asked, whole)
    found += _numerics(predicted, true)
    return found


def _counted(compiles: Sequence[Sequence[Any]]) -> Counter[tuple[int, str | None]]:
    return Counter((step, block) for step, block in compiles)


def _sets(what: str, told: set[str], wanted: set[str]) -> list[str]:
    found = []
    if told - wanted:
        found.append(f"{what}: predicted and not true: {', '.join(sorted(told - wanted)[:4])}")
    if wanted - told:
        found.append(f"{what}: true and not predicted: {', '.join(sorted(wanted - told)[:4])}")
    return found


def _raised(predicted: Mapping[str, Any], true: Mapping[str, Any]) -> list[str]:
    told = [f for f in predicted["findings"] if f["kind"] == "error" and f["severity"] == "error"]
    stopped = [f for f in told if f["cause"] not in ("compiled_region_not_reached", "fullgraph_error")]
    if true["raised"] and not told:
        return [f"raises, and this is not predicted: {true['raised']}"]
    if stopped and not true["raised"]:
        return [f"{f['cause']} is predicted, and the run ends well" for f in stopped]
    return []


def _fullgraph(told: Mapping[str, bool | None], whole: Mapping[str, Any]) -> list[str]:
    found = []
    for block in whole["calls"]:
        captured = block not in whole["refused"]
        if told.get(block) is not None and told[block] != captured:
            found.append(f"fullgraph of {block}: {told[block]} predicted, {captured} true")
    return found


def _numerics(predicted: Mapping[str, Any], true: Mapping[str, Any]) -> list[str]:
    wrong = [f for f in predicted["findings"] if f["kind"] == "numerics"]
    eager = true.get("eager_losses")
    if not wrong or eager is None:
        return []
    apart = [a for a, b in zip(eager, true["losses"], strict=False) if abs(a - b) > 1e-3 * max(1.0, abs(a))]
    return [] if apart else [f"{wrong[0]['cause']} is predicted, and the losses are eager's"]


def explanation(predicted: Mapping[str, Any], agrees_with_weights: bool | None) -> str | None:
    """Why a weightless prediction may differ: its report says which values it assumed, and the same check agrees
    once it has the values. None where that does not hold.
    """
    assumed = predicted.get("undetermined") or []
    if assumed and agrees_with_weights:
        return f"assumed and said so: {assumed[0]}"
    return None
