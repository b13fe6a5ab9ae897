"""Plans, data and figures from what a rehearsal saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cftdiag.check import script_plan
from cftdiag.details import CompileDetail
from cftdiag.events import Code, Event
from cftdiag.findings import Finding, Remedy
from cftdiag.forecast.data_files import read_lengths
from cftdiag.monitor.plan_match import Planned
from cftdiag.plan import load_plan

BATCHES = [
    {"step": 1, "shapes": [[4, 30], [4, 30]]},
    {"step": 2, "shapes": [[4, 35], [4, 61]]},
    {"step": 3, "shapes": [[4, 47], [4, 30]]},
    {"step": 4, "shapes": [[1, 41]]},
]
COMPILES = [
    {"step": 1, "batch_size": 4, "length": 30, "compile_id": "0/0"},
    {"step": 1, "batch_size": 4, "length": 30, "compile_id": "0/1"},
    {"step": 1, "batch_size": 4, "length": 30, "compile_id": "1/0"},
    {"step": 2, "batch_size": 4, "length": 35, "compile_id": "0/2"},
    {"step": 4, "batch_size": 1, "length": 41, "compile_id": "0/3"},
    {"step": 4, "batch_size": None, "length": None, "compile_id": "2/0"},
]


def report(**forecast: Any) -> dict[str, Any]:
    return {
        "subject": {"world_size": 2, "compile_kwargs": {"dynamic": None}},
        "environment": {"torch": "2.13.0", "transformers": None},
        "target": None,
        "depth": "joint",
        "forecast": forecast,
    }


def test_shapes_that_compiled_begin_a_regime_and_others_belong_to_one() -> None:
    found = script_plan.forecast(BATCHES, COMPILES)
    assert [(r["id"], r["bounds"], r["visits"]) for r in found["regimes"]] == [
        ("r0", ["B == 4", "S == 30"], 3),
        ("r1", ["B == 4", "S >= 35", "S <= 61"], 3),
        ("r2", ["B == 1", "S == 41"], 1),
    ]
    assert ["r1", 4, 61, 1] in found["points"] and ["r0", 4, 30, 3] in found["points"]


def test_plan_names_what_to_warm_and_what_was_proved(tmp_path: Path) -> None:
    proved = Remedy(summary="x", change={"torch._dynamo.config.specialize_float": False}, verified=True)
    finding = Finding(kind="recompile", cause="seq_len", severity="warning", remedies=(proved,))
    data = report(**script_plan.forecast(BATCHES, COMPILES))
    made = script_plan.plan(data, [finding], {"torch._dynamo.config.recompile_limit": 16})
    made.write(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json", {"torch": "2.13.0", "world_size": 2})
    assert plan.warm == ((4, 30, ""), (4, 35, ""), (1, 41, ""))
    assert plan.regime_of(4, 50) == "r1" and plan.regime_of(4, 33) is None
    planned, code = Planned("plan", plan), Code(qualname="forward", file="train.py", line=1)

    def foreseen(compile_id: str, batch: tuple[int, int]) -> bool | None:
        detail = CompileDetail(status="ok")
        event = Event(kind="compile", time=0.0, step=1, code=code, compile_id=compile_id, detail=detail)
        return planned.foresees(event, batch)

    # two blocks of one class that differ: the plan foresees two graphs for the shape, and each is asked for twice
    assert [foreseen(i, (4, 30)) for i in ("0/0", "0/0", "0/1", "0/1", "0/2")] == [True] * 4 + [False]
    assert foreseen("0/3", (4, 40)) and not foreseen("0/4", (4, 33))
    assert [(s.key.rpartition(".")[2], s.verified) for s in plan.settings] == [
        ("recompile_limit", None),
        ("specialize_float", True),
    ]


def test_saved_rehearsal_is_data(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    path.write_text(json.dumps({"schema": "cftdiag.check/1", "script": {"batches": BATCHES}}, indent=1))
    lengths = list(read_lengths(path))
    assert lengths[:12] == [30] * 8 + [35] * 4 and lengths[-1] == 41 and len(lengths) == 25


@pytest.mark.parametrize("text", ['{"len": 12}\n{"len": 13}\n', '{"len": 12}'])
def test_jsonl_under_another_name_is_still_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    assert next(iter(read_lengths(path))) == 12
