"""Blocks that were compiled and whose compiled call no step makes: who calls their forward instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cftdiag.capture import Recorder
from cftdiag.diagnose import Block, Context, diagnose
from cftdiag.diagnose.engine.probes import PassedBy, Probes
from cftdiag.frames import Frame
from cftdiag.passes.compiled_calls import Watch

BLOCKS = (
    Block(fqn="layers.0", cls="B", kind="B", index=0),
    Block(fqn="layers.1", cls="B", kind="B", index=1),
)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.fixture
def watched() -> tuple[Watch, Doubled]:
    watch, block = Watch(isolate=False, on_call=lambda *_: None), Doubled()
    block.compile(backend="eager")
    watch.instrument(block, "layers.0", Recorder())
    return watch, block


def test_the_line_that_calls_a_forward_past_the_compiled_call_is_known(
    watched: tuple[Watch, Doubled],
) -> None:
    watch, block = watched
    block.forward(torch.ones(1))
    assert watch.passed_by == ()  # nothing is changed before a step has shown that the block is silent
    watch.look_past_silent_calls()
    assert watch.passed_by == (PassedBy(block="layers.0"),)
    torch.utils.checkpoint.checkpoint(block.forward, torch.ones(1, requires_grad=True), use_reentrant=False)
    (known,) = watch.passed_by
    assert known.by is not None and known.by.file == __file__
    assert (known.by.code or "").startswith("torch.utils.checkpoint.checkpoint(block.forward")
    watch.undo()
    assert "forward" not in block.__dict__


def test_a_block_whose_compiled_call_comes_later_is_left_as_it_was(watched: tuple[Watch, Doubled]) -> None:
    watch, block = watched
    watch.look_past_silent_calls()
    assert "forward" in block.__dict__
    watch._before(block, "layers.0", (), {})
    assert "forward" not in block.__dict__ and watch.passed_by == ()
    watch.look_past_silent_calls()
    assert "forward" not in block.__dict__ and watch.passed_by == ()


def told(*passed_by: PassedBy) -> tuple[str, str | None, list[str]]:
    never = tuple(p.block for p in passed_by) or ("layers.1",)
    context = Context(blocks=BLOCKS, probes=Probes(never_run=never, passed_by=passed_by))
    (found,) = diagnose([], context)
    return found.explanation, found.where.code, [r.summary for r in found.remedies]


def test_a_bypassed_block_is_told_from_one_that_nothing_runs(tmp_path: Path) -> None:
    line = Frame(file=str(tmp_path / "m.py"), line=3, function="forward", code="x = block.forward(x)")
    explanation, code, remedies = told(PassedBy(block="layers.1", by=line))
    assert code == "x = block.forward(x)" and "`x = block.forward(x)` calls its forward" in explanation
    assert remedies[0].startswith("Call the block itself at `x = block.forward(x)`")
    explanation, code, remedies = told(PassedBy(block="layers.1"))
    assert code is None and explanation.endswith("no step runs it.")
    assert len(remedies) == 1 and remedies[0].startswith("Leave layers.1 out of what is compiled")
    explanation, _, remedies = told()
    assert explanation.endswith("its compiled code was never called.") and len(remedies) == 2
