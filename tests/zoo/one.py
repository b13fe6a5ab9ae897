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
    """The row of one class: ``status``, ``why``, ``cpu`` seconds, and a run for each mode.

    A class whose symbolic shapes take too long is held once more with every size a number.
    """
    held = _Held(entry, truth, predict, all_modes=all_modes)
    try:
        return held.row(entry.dynamic)
    except _TooSlow as first:
        try:
            return held.row("false")
        except _TooSlow:
            return held.unheld("too_slow", str(first))


class _Failed(Exception):
    """A side ended without an answer."""


class _NoBlocks(Exception):
    """The check refuses the model: no layers repeat in it."""


class _TooSlow(Exception):
    """A side used up its processor time."""


class _Held:
    """One class while it is held. ``cpu``: processor seconds so far."""

    def __init__(self, entry: Entry, truth: Server, predict: Server, *, all_modes: bool) -> None:
        self.entry, self.truth, self.predict, self.all_modes = entry, truth, predict, all_modes
        self.cpu = 0.0
        self.found: dict[str, Any] | None = None

    def ask(self, server: Server, **job: Any) -> dict[str, Any]:
        answer = server.run({"entry": self.entry.to_dict(), **job})
        self.cpu = round(self.cpu + answer.pop("cpu", 0.0), 2)
        if "too_slow" in answer:
            raise _TooSlow(answer["too_slow"])
        if "failed" in answer:
            raise _Failed(answer["failed"])
        return answer

    def unheld(self, status: str, why: str) -> dict[str, Any]:
        """A row without runs."""
        return {"entry": self.entry.to_dict(), "status": status, "why": why, "cpu": self.cpu, "runs": []}

    def row(self, dynamic: str) -> dict[str, Any]:
        try:
            if self.found is None:
                self.found = self.ask(self.truth, do="find")
            if "not_trainable" in self.found:
                return self.unheld("not_trainable", self.found["not_trainable"])
            plan = self.found["plan"]
            runs = [
                run
                for use_cache, ways in self._modes(plan)
                for run in self._runs(plan, use_cache, ways, dynamic)
            ]
        except _NoBlocks as error:
            return self.unheld("no_blocks", str(error))
        except _Failed as error:
            return self.unheld("failed", str(error)[-1500:])
        wrong = [run for run in runs if run["differences"] and not run["explained"]]
        explained = any(run["explained"] for run in runs)
        status = "differs" if wrong else "explained" if explained else "agrees"
        said = {"way": plan["way"], "form": plan["form"], "parameters": plan["parameters"], "runs": runs}
        return {**self.unheld(status, ""), **said}

    def _modes(self, plan: Mapping[str, Any]) -> Iterator[tuple[bool, list[str]]]:
        """(use_cache, ways to run the check). A class is always held without weights, and one of eight with
        weights, too; one of four runs with a cache instead of without, by its number. ``all_modes``: in all.
        """
        number = self.entry.number
        cached = plan["caches"] and (self.all_modes or number % 4 == 1)
        if self.all_modes or not cached:
            yield False, [WITHOUT, WITH] if self.all_modes or number % 8 == 0 else [WITHOUT]
        if cached:
            yield True, [WITHOUT, WITH] if self.all_modes else [WITHOUT]

    def _runs(
        self, plan: Mapping[str, Any], use_cache: bool, ways: list[str], dynamic: str
    ) -> Iterator[dict[str, Any]]:
        """The runs of one program: the truth is taken once, the check runs in each way."""
        job: dict[str, Any] = {"plan": plan, "use_cache": use_cache, "depth": self.entry.depth}
        told = self.ask(self.predict, **job, dynamic=dynamic, fast_forward=ways)
        if "no_blocks" in told:
            if told["layers"]:  # transformers itself has layers that it could checkpoint
                raise _Failed(f"{told['no_blocks']}; but there are {', '.join(told['layers'][:4])}")
            raise _NoBlocks(told["no_blocks"])
        predicted = told["predicted"]
        job |= {
            "do": "run",
            "dynamic": {"auto": None, "true": True, "false": False}[dynamic],
            "blocks": told["blocks"],
        }
        true = self.ask(self.truth, **job, fullgraph=False)
        if any(f["kind"] == "numerics" for way in predicted.values() for f in way.get("findings", ())):
            true["eager_losses"] = self.ask(self.truth, **job, fullgraph=False, eager=True)["losses"]
        whole = self._whole(job, predicted, true)
        held = {way: differences(predicted[way], true, whole) for way in predicted}
        if held.get(WITHOUT) and predicted[WITHOUT].get("undetermined") and WITH not in held:
            again = {k: job[k] for k in ("plan", "use_cache", "depth")}
            predicted |= self.ask(self.predict, **again, dynamic=dynamic, fast_forward=[WITH])["predicted"]
            held[WITH] = differences(predicted[WITH], true, whole)
        agrees = None if WITH not in held else not held[WITH]
        for way, found in held.items():
            weights = "with" if way == WITH else "without"
            because = explanation(predicted[way], agrees) if found and way == WITHOUT else None
            yield {
                "mode": f"{weights} weights{', use_cache' if use_cache else ''}, dynamic={dynamic}, {self.entry.depth}",
                "differences": found,
                "explained": because,
                "true": true,
                "predicted": predicted[way],
                "refused": None if whole is None else whole["refused"],
            }

    def _whole(
        self, job: Mapping[str, Any], predicted: Mapping[str, Any], true: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The run with fullgraph=True: its first step, and all where that one captures what is said to be refused.

        What never broke is captured whole; one class of sixteen is asked whether that is so.
        """
        said = [way.get("fullgraph", {}) for way in predicted.values()]
        broken = bool(true["breaks"]) or any(False in one.values() for one in said)
        if not broken and not self.all_modes and self.entry.number % 16 != 2:
            return None
        whole = self.ask(self.truth, **job, fullgraph=True, steps=1)
        later = any(one.get(b) is False for one in said for b in whole["calls"] if b not in whole["refused"])
        return self.ask(self.truth, **job, fullgraph=True) if later else whole
