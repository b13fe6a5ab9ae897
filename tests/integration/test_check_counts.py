"""Counts that a report gives, against what the same program does in a process without our code.

The programs lie in ``tests/cases/truth``; their true counts were taken from torch's own logs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cftdiag.check import CheckReport, run_check
from cftdiag.options import CheckOptions

PROGRAMS = Path(__file__).parents[1] / "cases" / "truth"


def check(name: str, **options: object) -> CheckReport:
    return run_check(CheckOptions(model=f"{PROGRAMS / name}.py:build", verify=False, **options))


def test_our_own_functions_are_never_compiled() -> None:
    report = check("tolist_min", fast_forward="always", dynamic="true")
    assert len(report.compiles) == 2
    assert [(f.kind, f.cause) for f in report.findings] == [("graph_break", "tensor.tolist")]
    assert {b.graphs for b in report.blocks} == {2}


def test_every_stack_that_the_step_calls_is_reported() -> None:
    report = check("two_stacks", dynamic="true")
    assert [b.fqn for b in report.blocks] == [f"vision.{i}" for i in range(4)] + [
        f"language.{i}" for i in range(3)
    ]
    assert report.verdict == "not_viable"
    assert {b.fqn.partition(".")[0] for b in report.blocks if b.graph_breaks} == {"language"}


@pytest.mark.parametrize("blocks", [(), ("draft.*",)])
def test_a_stack_that_the_step_never_calls_is_left_out_unless_it_was_named(blocks, tmp_path) -> None:
    program = (PROGRAMS / "two_stacks.py").read_text()
    changed = program.replace("for b in s.language:\n            x = b(x)", "").replace(
        "s.language =", "s.draft ="
    )
    assert changed != program
    (tmp_path / "unused.py").write_text(changed)
    report = run_check(
        CheckOptions(model=f"{tmp_path}/unused.py:build", verify=False, dynamic="true", blocks=blocks)
    )
    if blocks:
        assert [(f.cause, f.blocks) for f in report.findings] == [
            ("compiled_region_not_reached", ("draft.*",))
        ]
    else:
        assert not report.findings and all(b.fqn.startswith("vision") for b in report.blocks)
        assert any("draft.*" in text and "left out" in text for text in report.undetermined)
