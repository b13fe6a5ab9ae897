"""The zoo's own rules: shrinking, and what counts as a difference. No model is built."""

from __future__ import annotations

import pytest

from tests.zoo.compare import differences, explanation
from tests.zoo.entries import FAMILIES, entries
from tests.zoo.inputs import SCHEDULES, placeholders
from tests.zoo.table import page, share, table

TRUE = {
    "compiles": [(1, "layers.0"), (2, "layers.0")],
    "breaks": [],
    "limits": [],
    "calls": {"layers.0": 2, "layers.1": 2},
    "kinds": {"layers.0": ("Block", "m.py:4"), "layers.1": ("Block", "m.py:4")},
    "refused": {},
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


def test_the_table_has_a_line_a_family_and_counts_each_class_once():
    rows = [
        {"entry": {"family": "causal", "cls": name}, "status": status, "why": "", "cpu": 1.0}
        | {"runs": [{"mode": "m", "differences": [], "explained": None, "true": TRUE}]}
        for name, status in (("A", "agrees"), ("B", "differs"), ("C", "not_trainable"))
    ]
    assert share(rows) == (1, 2)
    lines = table(rows, {"causal": 5})
    assert len(lines) == 2 + len(FAMILIES) + 1
    assert lines[2].startswith("| causal | 5 | 2 | 1 | 0 | 1 |")
    assert "1 of the 2 classes that were run agree or are explained; 2 of 5 are not run yet" in page(
        rows, {"causal": 5}, {}
    )
