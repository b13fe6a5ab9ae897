"""What one event says while the run goes on: its cause, its batch."""

from __future__ import annotations

import dataclasses

from cftdiag.details import CompileDetail
from cftdiag.events import Code, Guard, Reason
from cftdiag.monitor.event_cause import FirstBatch, LiveDiagnosis
from tests.unit.monitor_samples import compiled, event


def test_each_of_two_recompiles_of_one_code_has_its_own_cause() -> None:
    grad = Guard(
        expression="GLOBAL_STATE changed: grad_mode", expected="False", actual="True", value_type="bool"
    )
    rows = Guard(
        # a finding says the parameter's name in place of args[0]
        expression="tensor 'args[0]' size mismatch at index 0. expected 8, actual 2",
        source="L['args'][0].size()[0]",
        expected="8",
        actual="2",
        value_type="Tensor",
    )
    live = LiveDiagnosis()
    live.explain(compiled())
    first = event("recompile", guard=grad, reasons=(Reason(entry="0/0", guard=grad, closest=True),))
    assert live.explain(first).detail.cause == "grad_mode"
    second = event(
        "recompile",
        step=5,
        compile_id="0/2",
        guard=rows,
        reasons=(
            Reason(entry="0/0", guard=rows, closest=True, failed=1),
            Reason(entry="0/1", guard=grad, failed=1),
        ),
    )
    assert live.explain(second).detail.cause == "batch_dim"


def test_code_behind_a_break_has_the_batch_of_its_block() -> None:
    first = FirstBatch()
    outer = compiled()
    assert first.of(outer) == (2, 512)
    helper = dataclasses.replace(outer, code=Code(qualname="tile", file="/m/loss.py", line=3))
    other = dataclasses.replace(helper, detail=CompileDetail())
    assert first.of(helper) == first.of(other) == (2, 512)
    assert first.of(dataclasses.replace(helper, block="layers.1")) == (2, 512)
    assert first.of(dataclasses.replace(other, block="layers.2")) is None
