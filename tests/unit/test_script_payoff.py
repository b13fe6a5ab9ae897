"""What the step of a training command launches, and what compiling it gains: counted by hand."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from cftdiag.payoff.allocations import Allocations
from cftdiag.payoff.estimate import CONTEXT_BYTES, HIDDEN, SEEN, memory_of_script, of_script
from cftdiag.rehearse.step_work import StepWork
from cftdiag.report import html, markdown
from cftdiag.report import payoff as section
from cftdiag.report.console import console_for
from cftdiag.target.devices import DEVICES
from cftdiag.target.step_work import StepMemory
from cftdiag.target.work import Launch, Work
from tests.unit import check_samples

H200 = DEVICES["h200"]
GB = 10**9
PRODUCT = Launch(name="aten.mm", bytes=GB, flops=2 * 10**12, product=True)


@pytest.fixture
def allocations() -> Iterator[Allocations]:
    made = Allocations(lambda: [])
    yield made
    made.close()


def graph(dtype: torch.dtype, *, known: bool = True) -> Any:
    """A graph that ran, with the code that was generated for it."""
    kernel = SimpleNamespace(name="triton_mul", bytes=8, flops=1, category="pointwise")
    call = SimpleNamespace(op="aten.mm", bytes=16, flops=32)
    lowered = SimpleNamespace(kernels=(kernel,), externs=(call,), peak_bytes=10**9) if known else None
    return SimpleNamespace(
        lowered=lowered,
        val={"x": torch.empty(2, dtype=dtype), "n": 3},
        plan=SimpleNamespace(placeholders=["x"]),
    )


def add(work: StepWork, value: torch.Tensor) -> None:
    work.operator_ran(torch.ops.aten.add.Tensor, (value, value), {}, torch.empty_like(value))


def test_the_last_whole_step_is_kept_by_what_ran_eager_and_compiled(
    tmp_path: Path, allocations: Allocations
) -> None:
    ended = [0]
    work, path = StepWork(lambda: ended[0], allocations), tmp_path / "work.json"
    value = torch.empty(4)
    for step in (1, 2, 3):
        for _ in range(step):
            add(work, value)
        work.operator_ran(torch.ops.aten.view.default, (value, [2, 2]), {}, value.view(2, 2))
        work.graph_runs(graph(torch.bfloat16))
        ended[0] = step
    add(work, value)  # of the step that nobody finished
    work.write(path)
    data = json.loads(path.read_text())
    assert data["step"] == 3
    [eager] = data["eager"]
    assert (eager["name"], eager["count"], eager["bytes"]) == ("aten.add", 3, 2 * 4 * 4)
    assert {(one["name"], one["product"], one["half"]) for one in data["compiled"]} == {
        ("triton_mul", False, True),
        ("aten.mm", True, True),
    }


@pytest.mark.parametrize("steps", [1, 2])
def test_a_first_step_and_code_that_is_not_known_are_not_told(
    tmp_path: Path, allocations: Allocations, steps: int
) -> None:
    ended = [0]
    work, path = StepWork(lambda: ended[0], allocations), tmp_path / "work.json"
    for step in range(1, steps + 1):
        work.graph_runs(graph(torch.float32, known=step == 1))
        ended[0] = step
    work.write(path)
    assert not path.exists()


def test_what_stays_eager_counts_on_both_sides() -> None:
    rest = Work((PRODUCT, Launch(name="aten.mul", bytes=GB, count=5)))
    inside = Work((Launch(name="aten.add", bytes=GB, count=20),))
    fused = Work((Launch(name="triton", bytes=GB, count=2),))
    held = StepMemory(
        parameters=GB, gradients=GB, optimizer=2 * GB, gathered=GB, saved=4 * GB, transient=GB, other=0, kept_for_backward=5 * GB,
    )  # fmt: skip
    memory = {"none": dataclasses.replace(held, saved=200 * GB), "script": held}
    data = of_script(
        rest + inside, rest, fused, H200, "h200", graphs=1, compile_seconds=10.0, world_size=8, memory=memory,
        batches=[(2, 512), (4, 512)],
    )  # fmt: skip
    none, script = data["scopes"]
    assert (none["kernels"], script["kernels"], script["graphs"]) == (26, 8, 1)
    assert script["compile_seconds"] == pytest.approx(10.7)
    bandwidth = H200.dram_gbps * 1e9
    saved = none["seconds"][HIDDEN]["step"] - script["seconds"][HIDDEN]["step"]
    assert saved == pytest.approx(18e9 / bandwidth)
    ratios = [none["seconds"][b]["step"] / script["seconds"][b]["step"] for b in (HIDDEN, SEEN)]
    assert script["gain"] == [min(ratios), max(ratios)]
    out = io.StringIO()
    section.show(console_for(out, 200), {"payoff": data})
    assert "Gain on NVIDIA H200: the last step of the command, 8 ranks (estimated)" in out.getvalue()
    text = " ".join(out.getvalue().split())
    assert data["memory"]["compiled"]["peak"] == 10 * GB + CONTEXT_BYTES
    assert "saved 4.0 GB, transient 1.0 GB): fits 150.1 GB: yes at 4 x 512" in text
    assert "saved 200.0 GB, transient 1.0 GB): fits 150.1 GB: no at 4 x 512" in text
    assert "the command decides its batch" in text
    check = check_samples.viable() | {"payoff": data}
    assert "the last step of the command" in html.render(check) and "script" in markdown.render(check)


def test_a_command_that_cannot_do_without_compile_is_told_its_memory() -> None:
    held = StepMemory(
        parameters=GB, gradients=GB, optimizer=2 * GB, gathered=0, saved=4 * GB, transient=GB, other=0, kept_for_backward=5 * GB,
    )  # fmt: skip
    data = memory_of_script({"script": held}, H200, "h200", world_size=2, batches=[(1, 2048)])
    out = io.StringIO()
    section.show(console_for(out, 200), {"payoff": data})
    assert "Memory on NVIDIA H200: the last step of the command, 2 ranks (estimated)" in out.getvalue()
    assert (
        "fits 150.1 GB: yes at 1 x 2048" in " ".join(out.getvalue().split())
        and "pays after" not in out.getvalue()
    )
    check = check_samples.viable() | {"payoff": data}
    for text in (html.render(check), markdown.render(check)):
        assert "fits 150.1 GB: yes" in text and "pays after" not in text


def test_what_a_graph_needs_inside_grows_with_its_symbolic_inputs(allocations: Allocations) -> None:
    work = StepWork(lambda: 0, allocations)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = mode.from_tensor(
        torch.empty(16, 10),
        symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] + [DimDynamic.STATIC]),
    )
    symbol = rows.shape[0].node.expr
    ran = SimpleNamespace(
        lowered=SimpleNamespace(peak_bytes=1000 + 40 * 16 + 200), val={"x": rows, "w": torch.empty(5, 10)},
        plan=SimpleNamespace(placeholders=["x", "w"]),
        number=lambda size, env: env[size.node.expr] if isinstance(size, torch.SymInt) else size,
    )  # fmt: skip
    assert work._inside.bytes(ran, {symbol: 16}) == 1000
    assert work._inside.bytes(ran, {symbol: 32}) == 2000
