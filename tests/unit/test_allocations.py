"""What a step with skipped arithmetic holds, against torch's own record of every allocation of the same step for real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from cftdiag.fastforward import SkipMode
from cftdiag.payoff.allocations import Allocations
from cftdiag.target.step_work import StepMemory


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
        self.head = nn.Linear(64, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).float().log_softmax(-1).square().mean()


class Counting(SkipMode):
    allocations: Allocations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if out is not NotImplemented:
            self.allocations.operator_ran(func, out)
        return out


@pytest.fixture
def counting() -> Iterator[Counting]:
    mode, models = Counting(), []
    mode.models = models  # type: ignore[attr-defined]
    mode.allocations = Allocations(lambda: models)
    yield mode
    mode.allocations.close()


def train(rows: int) -> tuple[Net, Any, Any]:
    """(model, optimizer, what makes one step)."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        model(torch.randn(rows, 64)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def held(mode: Counting, rows: int) -> StepMemory:
    with mode:
        model, _, step = train(rows)
        mode.models.append(model)  # type: ignore[attr-defined]
        for _ in range(3):
            step()
            memory = mode.allocations.step_ended()
    return memory


def recorded(run: Any) -> list[int]:
    """Bytes that were allocated after each allocation and release of a run."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    total, found = 0, []
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        found.append(total)
    return found


@pytest.mark.parametrize("rows", [8, 2048])
def test_the_most_that_a_step_holds_is_what_a_real_one_allocates(counting: Counting, rows: int) -> None:
    """Few rows: the update holds most; many: the backward."""
    memory = held(counting, rows)
    model, optimizer, step = train(rows)
    step()
    own = sum(p.numel() * 4 for p in model.parameters())
    states = sum(v.numel() * 4 for state in optimizer.state.values() for v in state.values())
    assert (memory.parameters, memory.optimizer) == (own, pytest.approx(states, rel=0.001))
    assert memory.total == pytest.approx(own + states + max(recorded(step)), rel=0.02)
    assert memory.gradients <= own
    assert (memory.gradients == own) is (rows == 8), "in a backward the first gradients are not there yet"
    kept: list[Any] = []
    left = recorded(lambda: kept.append(model(torch.randn(rows, 64))))[-1]
    assert memory.kept_for_backward == pytest.approx(left, rel=0.02)
    if rows == 2048:
        assert memory.saved > own and memory.transient > own


def test_what_lives_from_step_to_step_is_told_by_what_it_is(counting: Counting) -> None:
    with counting:
        model, _, step = train(8)
        counting.models.append(model)  # type: ignore[attr-defined]
        average = [p.detach().clone() for p in model.parameters()]
        for _ in range(2):
            step()
            counting.allocations.step_ended()
        gathered = torch.empty(1000)
        gathered.untyped_storage().resize_(0)
        gathered.untyped_storage().resize_(8000)
        step()
        memory = counting.allocations.step_ended()
    assert memory.other == sum(t.numel() * 4 for t in average)
    assert memory.gathered == 8000, "freed and filled again"


def test_a_graph_needs_more_while_it_runs(counting: Counting) -> None:
    with counting:
        model, _, step = train(8)
        counting.models.append(model)  # type: ignore[attr-defined]
        for inside in (0, 10**8):
            counting.allocations.graph_starts()
            counting.allocations.graph_ran([torch.empty(10)], inside)
            step()
            memory = counting.allocations.step_ended()
    assert memory.transient >= 10**8 and memory.gradients == 0, "it ran ahead of the backward"
