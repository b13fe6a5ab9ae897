"""The zoo's own rules: shrinking, and what counts as a difference. No model is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.zoo.compare import differences, explanation
from tests.zoo.entries import FAMILIES, entries
from tests.zoo.inputs import SCHEDULES, placeholders
from tests.zoo.one import hold
from tests.zoo.server import Job, Server
from tests.zoo.table import kept, page, share, table

TRUE = {
    "compiles": [(1, "layers.0"), (2, "layers.0")],
    "breaks": [],
    "limits": [],
    "calls": {"layers.0": 2, "layers.1": 2},
    "kinds": {"layers.0": ("Block", "m.py:4"), "layers.1": ("Block", "m.py:4")},
    "refused": {},
    "refused_at": [],
    "raised": None,
    "left_out": [],
    "losses": [1.0, 2.0],
}
PREDICTED = {
    "blocks": ["layers.0", "layers.1"],
    "compiles": [(1, "layers.0"), (2, "layers.0")],
    "breaks": [],
    "broken": [],
    "limited": [],
    "fullgraph": {"layers.0": True, "layers.1": True},
    "findings": [],
    "undetermined": [],
}


def test_equal_counts_are_no_difference():
    assert differences(PREDICTED, TRUE, TRUE) == []


@pytest.mark.parametrize(
    "predicted, true, told",
    [
        ({"compiles": [(1, "layers.0")]}, {}, "step 2, layers.0: 0 compiles predicted, 1 true"),
        (
            {"compiles": [*PREDICTED["compiles"], (2, "layers.1")]},
            {},
            "step 2, layers.1: 1 compiles predicted",
        ),
        ({}, {"breaks": [(1, "layers.0", "m.py:7")]}, "places of breaks: true and not predicted: m.py:7"),
        ({}, {"limits": [(2, "layers.1")]}, "blocks at the limit: true and not predicted: layers.1"),
        ({"broken": ["layers.1"]}, {}, "blocks with a break: predicted and not true: layers.1"),
        ({}, {"refused": {"layers.1": "Unsupported"}}, "fullgraph of layers.1: True predicted, False true"),
        ({}, {"raised": "step 1: ValueError"}, "raises, and this is not predicted"),
        ({}, {"left_out": ["tower.0"]}, "layers that are no block: tower.0"),
        ({"error": "InputError: no"}, {}, "the check ended without a report"),
        (
            {"findings": [{"kind": "numerics", "cause": "silent_wrong_numerics", "severity": "error"}]},
            {"eager_losses": [1.0, 2.0]},
            "silent_wrong_numerics is predicted, and the losses are eager's",
        ),
    ],
)
def test_each_thing_that_a_report_says_otherwise_is_told(predicted, true, told):
    found = differences(PREDICTED | predicted, TRUE | true, TRUE | true)
    assert any(line.startswith(told) for line in found), found


def test_a_break_counts_for_the_blocks_that_share_the_broken_class():
    true = TRUE | {"breaks": [(1, "layers.0", "m.py:7")]}
    broken = PREDICTED | {"breaks": ["m.py:7"], "broken": ["layers.0", "layers.1"]}
    assert differences(broken, true) == []


def test_a_place_where_fullgraph_alone_is_refused_is_a_break_too():
    true = TRUE | {"breaks": [(1, "layers.0", "m.py:7")]}
    refused = {"refused": {"layers.0": "Unsupported", "layers.1": "Unsupported"}, "refused_at": ["m.py:9"]}
    captured = {"fullgraph": {"layers.0": False, "layers.1": False}}
    broken = PREDICTED | captured | {"breaks": ["m.py:7", "m.py:9"], "broken": ["layers.0", "layers.1"]}
    assert differences(broken, true, true | refused) == []
    assert differences(broken, true, true | refused | {"refused_at": []}) != []
    assert differences(broken | {"breaks": ["m.py:9"]}, true, true | refused) != []


def test_only_an_assumption_that_was_told_explains():
    assumed = PREDICTED | {"undetermined": ["the routing is balanced"]}
    assert explanation(assumed, True) == "assumed and said so: the routing is balanced"
    assert explanation(assumed, False) is None
    assert explanation(PREDICTED, True) is None


def test_every_class_is_met_once_and_families_come_in_turn():
    found = entries()
    assert len({e.cls for e in found}) == len(found) > 500
    assert {e.family for e in found[: len(FAMILIES)]} == set(FAMILIES)


def test_schedules_vary_rows_and_lengths():
    for schedule in SCHEDULES:
        assert len({rows for rows, _, _ in schedule}) > 1
        assert len({length for _, length, _ in schedule}) > 2
        assert any(padded for *_, padded in schedule)


def test_the_number_of_placeholders_is_read_from_the_model_s_own_words():
    said = "Image features and image tokens do not match, tokens: 0, features: 48"
    assert placeholders(said, 3) == 16
    assert placeholders("shape mismatch", 3) is None


class Told(Server):
    """Answers as a side would; ``slow``: values of ``dynamic`` for which it uses up its time."""

    def __init__(self, answer: Mapping[str, Any], slow: Sequence[Any] = ()) -> None:
        super().__init__("truth")
        self.answer, self.slow, self.jobs = answer, slow, list[Job]()

    def run(self, job: Job) -> dict[str, Any]:
        self.jobs.append(job)
        if job.get("do") == "find":
            plan = {"caches": False, "way": "narrow", "form": {}, "parameters": 9}
            return {"plan": plan, "cpu": 0.5}
        if job.get("dynamic") in self.slow:
            return {"too_slow": "stopped", "cpu": 45.0}
        return {**self.answer, "cpu": 1.0}


@pytest.mark.parametrize(
    "slow, status, mode",
    [((), "agrees", "auto"), (("auto",), "agrees", "false"), (("auto", "false"), "too_slow", "")],
)
def test_a_class_that_is_too_slow_is_held_with_static_sizes(slow, status, mode):
    entry = next(e for e in entries() if e.number % 16 == 3 and e.dynamic == "auto")
    predict = Told({"blocks": list(PREDICTED["blocks"]), "predicted": {"always": PREDICTED}}, slow)
    row = hold(entry, Told(TRUE), predict)
    assert row["status"] == status
    assert [run["mode"] for run in row["runs"]] == (
        [f"without weights, dynamic={mode}, trace"] if mode else []
    )
    assert row["cpu"] == 0.5 + 45 * len(slow) + 2 * bool(mode)


@pytest.mark.parametrize("refused, steps", [({"layers.0": "Unsupported"}, [1]), ({}, [1, None])])
def test_a_refusal_that_the_first_step_does_not_meet_is_looked_for_in_all(refused, steps):
    entry = next(e for e in entries() if e.number % 16 == 3)
    said = PREDICTED | {"fullgraph": {"layers.0": False, "layers.1": True}}
    truth = Told(TRUE | {"refused": refused})
    row = hold(entry, truth, Told({"blocks": PREDICTED["blocks"], "predicted": {"always": said}}))
    assert [job.get("steps") for job in truth.jobs if job.get("fullgraph")] == steps
    assert row["status"] == ("agrees" if refused else "differs")


def test_a_model_without_repeated_layers_is_not_held_unless_transformers_has_some():
    entry = entries()[0]
    for layers, status in (([], "no_blocks"), (["tower.0"], "failed")):
        assert (
            hold(entry, Told(TRUE), Told({"no_blocks": "nothing repeats", "layers": layers}))["status"]
            == status
        )


def test_the_table_has_a_line_a_family_and_counts_each_class_once():
    rows = [
        {"entry": {"family": "causal", "cls": name}, "status": status, "why": "", "cpu": 1.0, "code": "c0de"}
        | {"runs": [{"mode": "m", "differences": [], "explained": None, "true": TRUE}]}
        for name, status in (("A", "agrees"), ("B", "differs"), ("C", "not_trainable"))
    ]
    assert share(rows) == (1, 2)
    lines = table(rows, {"causal": 5})
    assert len(lines) == 2 + len(FAMILIES) + 1
    assert lines[2].startswith("| causal | 5 | 2 | 1 | 0 | 1 |")
    assert table([kept(row) for row in rows], {"causal": 5}) == lines
    assert "3 of the 3 rows were made with the code as it is now" in page(rows, {"causal": 5}, {}, "c0de")
    assert "1 of the 2 classes that were run agree or are explained; 2 of 5 are not run yet" in page(
        rows, {"causal": 5}, {}, "c0de"
    )
