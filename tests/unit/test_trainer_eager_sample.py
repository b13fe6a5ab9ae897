"""Eager steps in a compiled run: which they are, what is told of them, and what a step is booked with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.eager_sample import EagerSample


def record(
    step: int, seconds: float, *, tokens: int = 100, graphs: int = 0, compile_seconds: float = 0.0
) -> dict[str, Any]:
    return {
        "step": step, "seconds": seconds, "tokens": tokens, "graphs": graphs, "compile_seconds": compile_seconds,
    }  # fmt: skip


def run(
    sample: EagerSample, seconds: dict[bool, float], steps: range, compiling: dict[int, float] | None = None
) -> list[int]:
    eager = []
    for step in steps:
        was_eager = sample.is_eager(step)
        eager += [step] if was_eager else []
        cost = (compiling or {}).get(step, 0.0)
        sample.note(record(step, seconds[was_eager] + cost, graphs=int(cost > 0), compile_seconds=cost))
    return eager


def test_compiled_and_eager_steps_are_compared_and_the_cost_is_paid_back() -> None:
    said: list[str] = []
    sample = EagerSample(3, first=11, compiled=True, say=said.append)
    assert run(sample, {True: 2.0, False: 1.0}, range(11, 30), {11: 30.0}) == [16, 17, 18, 19]
    [line] = said
    assert line == (
        "measured over 3 compiled and 3 eager steps: compiling gains 2.00x; 30.0 s of compiling pay after 30 steps"
    )


def test_steps_that_compile_are_left_out() -> None:
    said: list[str] = []
    sample = EagerSample(2, first=1, compiled=True, say=said.append)
    run(sample, {True: 1.0, False: 1.0}, range(1, 10), {1: 5.0, 3: 100.0})
    assert said == [
        "measured over 1 compiled and 2 eager steps: compiling gains 1.00x: it costs time here; --no-compile-model trains without"
    ]


def test_rows_of_other_lengths_are_compared_by_token() -> None:
    said: list[str] = []
    sample = EagerSample(1, first=1, compiled=True, say=said.append)
    for step, seconds, tokens in ((1, 1.0, 100), (2, 1.0, 100), (3, 1.0, 100), (4, 9.0, 100), (5, 4.0, 200)):
        sample.note(record(step, seconds, tokens=tokens, compile_seconds=1.0 if step == 1 else 0.0))
    assert "compiling gains 2.00x" in said[0]


@pytest.mark.parametrize("compiled", [True, False])
def test_without_a_sample_a_compiled_run_says_that_its_gain_is_not_known(compiled: bool) -> None:
    said: list[str] = []
    sample = EagerSample(0, first=1, compiled=compiled, say=said.append)
    assert run(sample, {True: 1.0, False: 1.0}, range(1, 6), {1: 7.0}) == []
    assert said == (
        ["compiled in 7.0 s; what it gains on this machine is not known (--measure-eager 5 measures it)"]
        if compiled
        else []
    )


def test_an_eager_step_runs_no_compiled_code() -> None:
    ran: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            ran.append("compiled")
            return gm.forward(*args)

        return call

    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2, backend=backend)
    sample = EagerSample(1, first=1, compiled=True, say=lambda text: None)
    for step in range(1, 7):
        with sample.stance(step):
            double(torch.ones(3))
    assert len(ran) == 4 and sample.is_eager(4) and sample.is_eager(5)
    torch._dynamo.reset()
