"""The page of the catalogue: a line a family."""

from __future__ import annotations

from cftdiag import catalogue
from cftdiag.check.viability import table


def row(model, attn="sdpa", verdict="viable", **more):
    known = {"compiles": 1, "causes": [], "reason": "", "model_type": "qwen3", "kinds": {"Layer": 1}}
    return {"model": model, "attn": attn, "verdict": verdict, "seconds": 1.0, **known, **more}


def test_equal_outcomes_of_a_family_are_one_line():
    names = [e.name for e in catalogue.entries() if e.name.startswith("Qwen3-")][:3]
    page = table([row(name) for name in names], "viability.jsonl").splitlines()
    [line] = [each for each in page if each.startswith("| qwen3 ")]
    assert line == f"| qwen3 | 3, from {names[0]} | viable (1) | - | - |"


def test_different_outcomes_of_a_family_are_counted():
    recompiled = row("Qwen3-1.7B", verdict="viable_with_recompiles", compiles=2, causes=["recompile:seq_len"])
    page = table([row("Qwen3-0.6B"), row("Qwen3-4B"), recompiled], "viability.jsonl")
    assert "2 x viable (1); 1 x viable_with_recompiles (2, recompile:seq_len)" in page


def test_a_reason_is_told_where_there_is_no_verdict():
    refused = row("Qwen3-0.6B", verdict="refused", compiles=None, reason="no such attention", model_type=None)
    page = table([refused], "viability.jsonl")
    assert "| Qwen3-0.6B | Qwen3-0.6B | refused (no such attention) | - | - |" in page
