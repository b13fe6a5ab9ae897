"""One class, held against the truth in its modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.zoo.compare import differences, explanation
from tests.zoo.entries import Entry
from tests.zoo.server import Server

WITH, WITHOUT = "never", "always"
"""Values of ``--fast-forward``: with weights, weightless."""


def hold(entry: Entry, truth: Server, predict: Server, *, all_modes: bool = False) -> dict[str, Any]:
    """The row of one class: ``status``, ``why``, ``cpu`` seconds, and a run for each mode."""
    row: dict[str, Any] = {"entry": entry.to_dict(), "why": "", "cpu": 0.0, "runs": []}

    def ask(server: Server, **job: Any) -> dict[str, Any]:
        answer = server.run({"entry": entry.to_dict(), **job})
        row["cpu"] = round(row["cpu"] + answer.pop("cpu", 0.0), 2)
        if "failed" in answer:
            raise _Failed(answer["failed"])
        return answer

    try:
        found = ask(truth, do="find")
        if "not_trainable" in found:
            return {**row, "status": "not_trainable", "why": found["not_trainable"]}
        plan = found["plan"]
        row |= {"way": plan["way"], "form": plan["form"], "parameters": plan["parameters"]}
        for use_cache, ways in _modes(entry, plan, all_modes):
            row["runs"] += _runs(
                ask,
                truth,
                predict,
                plan,
                use_cache,
                ways,
                entry.dynamic,
                always_whole=all_modes or entry.number % 4 == 2,
            )
    except _Failed as error:
        return {**row, "status": "failed", "why": str(error)[-1500:]}
    wrong = [run for run in row["runs"] if run["differences"] and not run["explained"]]
    explained = any(run["explained"] for run in row["runs"])
    status = "differs" if wrong else "explained" if explained else "agrees"
    return {**row, "status": status}


class _Failed(Exception):
    """A side ended without an answer."""


def _modes(entry: Entry, plan: Mapping[str, Any], all_modes: bool) -> Iterator[tuple[bool, list[str]]]:
    """(use_cache, ways to run the check). A class is always held without a cache and without weights, and of
    four one with weights and one with a cache, by its number; ``all_modes``: in all.
    """
    number = entry.number % 4
    yield False, [WITHOUT, WITH] if all_modes or number == 0 else [WITHOUT]
    if plan["caches"] and (all_modes or number == 1):
        yield True, [WITHOUT, WITH] if all_modes else [WITHOUT]


def _runs(
    ask: Any,
    truth: Server,
    predict: Server,
    plan: Mapping[str, Any],
    use_cache: bool,
    ways: list[str],
    dynamic: str,
    *,
    always_whole: bool,
) -> Iterator[dict[str, Any]]:
    """The runs of one program: the truth is taken once, the check runs in each way."""
    job: dict[str, Any] = {"plan": plan, "use_cache": use_cache}
    told = ask(predict, **job, dynamic=dynamic, fast_forward=ways)
    predicted = told["predicted"]
    kwargs = {"dynamic": {"auto": None, "true": True}[dynamic], "blocks": told["blocks"]}
    true = ask(truth, **job, **kwargs, do="run", fullgraph=False)
    if any(f["kind"] == "numerics" for way in predicted.values() for f in way.get("findings", ())):
        true["eager_losses"] = ask(truth, **job, **kwargs, do="run", fullgraph=False, eager=True)["losses"]
    broken = bool(true["breaks"] or true["limits"]) or any(
        False in way.get("fullgraph", {}).values() for way in predicted.values()
    )
    whole = None
    if broken or always_whole:  # what never broke is captured whole; one step is asked whether that is so
        whole = ask(truth, **job, **kwargs, do="run", fullgraph=True, steps=None if broken else 1)
    held = {way: differences(predicted[way], true, whole) for way in predicted}
    if held.get(WITHOUT) and predicted[WITHOUT].get("undetermined") and WITH not in held:
        again = ask(predict, **job, dynamic=dynamic, fast_forward=[WITH])["predicted"][WITH]
        predicted[WITH], held[WITH] = again, differences(again, true, whole)
    agrees = None if WITH not in held else not held[WITH]
    for way, found in held.items():
        mode = f"{'with' if way == WITH else 'without'} weights{', use_cache' if use_cache else ''}, dynamic={dynamic}"
        because = explanation(predicted[way], agrees) if found and way == WITHOUT else None
        yield {
            "mode": mode,
            "differences": found,
            "explained": because,
            "true": true,
            "predicted": predicted[way],
            "refused": None if whole is None else whole["refused"],
        }
