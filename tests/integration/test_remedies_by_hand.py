"""Every by-hand remedy of every page does what it says: it is carried out on the page's example, the finding is
gone, nothing that one has to act on has come, and every parameter is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cftdiag.check.changes import apply_change
from cftdiag.check.outcome import compiled
from cftdiag.diagnose import CAUSES
from cftdiag.diagnose.engine.cause import CHECK, EXAMPLES, Cause, fill
from cftdiag.events import Event
from cftdiag.findings import Remedy
from cftdiag.options import CheckOptions
from tests import diagnose_case
from tests.cases.by_hand import CARRIED_OUT, CarriedOut, Edits
from tests.integration.test_diagnose_examples import BY_BEHAVIOUR, check

#: Why no edit of an example shows what a remedy does.
NOT_SHOWN = {
    "known_wrong_code": "another version of torch",
    "kernel_spills": "test_target_kernels.py looks at kernels",
    "kernel_scalar_access": "test_target_kernels.py looks at kernels",
    "kernel_fp64": "test_target_kernels.py looks at kernels",
    "reduction_split": "nothing is to be done",
}

#: The beginnings of remedies for which no edit of their example stands here, and what shows them.
SHOWN_ELSEWHERE = {
    ("duck_shape", "Name what keeps its size"): "a setting of torch 2.15 alone",
    (
        "parameter_shape",
        "Each shape is a variant",
    ): "warming variants is carried out for layer_idx and others",
    ("shared_code_object", "Leave it so"): "nothing is to be done",
    (
        "ac_recompute_other_graph",
        "Leave {attribute} as it is",
    ): "tests/faults/injectors/counted_in_checkpoint.py mends so",
    (
        "ac_dtype_mismatch",
        "Leave {attribute} as it is",
    ): "tests/faults/injectors/precision_switch.py mends so",
    ("fullgraph_error", "Mend what stands in"): "tests/faults/injectors/wrong_fake.py mends so",
}


def template(row: CarriedOut) -> Remedy:
    """The remedy of the page that a row carries out."""
    (remedy,) = [r for r in CAUSES[row.cause].remedies if r.summary.startswith(row.remedy)]
    return remedy


#: What a finding would fill the templates with.
FACTS = {
    "argument": "x",
    "dim": 1,
    "more": 16,
    "multiple": 8,
    "dynamic_source": "L['x']",
    "logging_function": "warnings.warn",
    "reordered_function": "warnings.warn",
    "printer": "print",
}


def by_hand(cause: Cause) -> list[Remedy]:
    """The remedies that no check tries: in words only, or with a change that it cannot make."""
    found = []
    for remedy in cause.remedies:
        change = fill(remedy, FACTS).change
        tried = change is not None and any(
            apply_change(CheckOptions(model=model), change, config_subject=model == "llama") is not None
            for model in ("llama", "own.py:build")
        )
        if not tried and remedy.applicability != "diagnosis":
            found.append(remedy)
    return found


def test_each_by_hand_remedy_is_carried_out() -> None:
    carried_out = [(row.cause, template(row)) for row in CARRIED_OUT]
    shown = [c for c in CAUSES.values() if c.example and c.key not in NOT_SHOWN]
    missing = [(c.key, r.summary) for c in shown for r in by_hand(c) if (c.key, r) not in carried_out]
    elsewhere = {
        (key, begin): [(k, text) for k, text in missing if k == key and text.startswith(begin)]
        for key, begin in SHOWN_ELSEWHERE
    }
    assert all(len(found) == 1 for found in elsewhere.values()), elsewhere
    assert [row for row in missing if [row] not in elsewhere.values()] == []
    assert {row.cause for row in CARRIED_OUT} <= {c.key for c in shown}


def rows() -> list[Any]:
    """All, in ``make test`` those that a page advises first."""
    found, seen = [], set()
    for row in CARRIED_OUT:
        first = CAUSES[row.cause].remedies[0].summary.startswith(row.remedy) and row.cause not in seen
        seen.add(row.cause)
        marks = (
            [] if first else [pytest.mark.everything("a second a remedy; what a page advises first stays")]
        )
        found.append(pytest.param(row, marks=marks, id=f"{row.cause}: {row.remedy}"))
    return found


@pytest.mark.parametrize("row", rows())
def test_finding_is_gone(row: CarriedOut, tmp_path: Path) -> None:
    """The unedited example yields its cause: ``test_diagnose_examples.py`` holds that."""
    assert not template(row).unsafe and CAUSES[row.cause].seen_by == CHECK
    source, trained = EXAMPLES / (row.cause.replace(".", "_") + ".py"), None
    if row.variant:
        source = edited(source, row.variant, tmp_path / "variant.py")
        before = outcome(row.cause, source)
        assert row.cause in told(before)
        trained = before["trained"]
    after = outcome(row.cause, edited(source, row.edits, tmp_path / "edited.py"))
    assert after["steps"], "nothing was compiled"
    if row.warmed:
        assert set(after["steps"]) == {1}
        assert told(after) <= {row.cause} | row.leaves
    else:
        assert told(after) <= row.leaves
    assert after["trained"] == (after["trainable"] if trained is None else trained)


def told(outcome: dict[str, Any]) -> set[str]:
    """Causes of what a reader has to act on."""
    return {f["cause"] for f in outcome["findings"] if f["severity"] != "info"}


def edited(source: Path, edits: Edits, path: Path) -> Path:
    """The program with the edits, in a file of its own."""
    text = source.read_text()
    for old, new in edits:
        assert old in text, f"{source.name} has no {old!r}"
        text = text.replace(old, new)
    path.write_text(text)
    return path


def outcome(cause: str, path: Path) -> dict[str, Any]:
    """Findings, steps that compiled a forward region, and parameters that were trained."""
    if cause in BY_BEHAVIOUR:
        report = diagnose_case.in_child(lambda: check(path))
        return {
            "findings": report["findings"],
            "steps": [c["step"] for c in report["compiles"]],
            "trained": [],  # the check itself holds the gradients against eager's
            "trainable": [],
        }
    collected = diagnose_case.in_child(lambda: diagnose_case.run_pass(path, fullgraph=False))
    refused: dict[str, Any] = {"events": [], "fullgraph": {}}
    if CAUSES[cause].kinds == ("graph_break",) and not collected["wrap"]:
        refused = diagnose_case.in_child(lambda: diagnose_case.run_pass(path, fullgraph=True))
    return {
        "findings": diagnose_case.judge(collected, refused),
        "steps": [c.step for c in compiled(map(Event.from_dict, collected["events"]))],
        "trained": collected["trained"],
        "trainable": collected["trainable"],
    }
