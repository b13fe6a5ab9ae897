"""Steps, alarms, plans: pure rules."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import monitor_samples as samples
import pytest

from cftdiag.monitor import Monitor
from cftdiag.monitor.alarms import Rules
from cftdiag.monitor.plan_match import Planned
from cftdiag.monitor.step_counter import StepClock
from cftdiag.plan import FINGERPRINT, Plan, Regime


class Optimizer:
    pass


def test_one_optimizer_ends_a_step_each_time() -> None:
    clock, one = StepClock(), Optimizer()
    assert [clock.stepped(one) for _ in range(4)] == [True] * 4


def test_several_optimizers_make_one_step() -> None:
    clock, a, b, c = StepClock(), Optimizer(), Optimizer(), Optimizer()
    assert [clock.stepped(o) for o in (a, b, c, a, b, c, a, b, c)] == [True, False, False] * 3


def test_a_second_optimizer_that_comes_later_joins_in() -> None:
    clock, a, b = StepClock(), Optimizer(), Optimizer()
    assert [clock.stepped(o) for o in (a, a, a, b, a, b, a)] == [True, True, True, False, True, False, True]


def test_an_optimizer_that_steps_more_often_decides() -> None:
    # A GAN: the discriminator steps twice for each step of the generator.
    clock, d, g = StepClock(), Optimizer(), Optimizer()
    assert sum(clock.stepped(o) for o in (d, d, g, d, d, g)) == 4


def test_a_new_optimizer_after_a_dead_one_goes_on() -> None:
    clock, old = StepClock(), Optimizer()
    assert clock.stepped(old)
    del old
    new = Optimizer()
    assert clock.stepped(new)
    assert clock.stepped(new)


def test_recompiles_are_alarms_after_warm_up_only() -> None:
    rules = Rules(warmup_steps=3)
    assert rules.feed(samples.event("recompile", step=3)) == []
    (alarm,) = rules.feed(samples.event("recompile", step=4, detail={"cause": "seq_len", "remedy": "pad"}))
    assert (alarm.kind, alarm.step, alarm.block) == ("recompile_after_warmup", 4, "layers.0")
    assert alarm.message == (
        "compiled again after warm-up (3 steps): seq_len; guard tensor 'x' size mismatch at index 1. expected 512, actual 640; fix: pad"
    )


def test_a_recompile_outside_the_plan_is_an_alarm_at_any_step() -> None:
    rules = Rules(warmup_steps=10)
    assert [a.kind for a in rules.feed(samples.event("recompile", detail={"planned": False}))] == [
        "unplanned_recompile"
    ]
    assert rules.feed(samples.event("recompile", detail={"planned": True})) == []


def test_a_limit_hit_names_what_runs_eager() -> None:
    (alarm,) = Rules().feed(samples.event("limit_hit", detail={"limit": 8, "limit_kind": "recompile_limit"}))
    assert alarm.kind == "limit_hit"
    assert "recompile_limit (8) reached: every block that shares this code now runs eager" in alarm.message


@pytest.mark.parametrize(("entries", "checkpoint", "alarms"), [(4, True, 0), (5, True, 1), (5, False, 0)])
def test_the_limit_is_near_under_checkpointing(entries: int, checkpoint: bool, alarms: int) -> None:
    rules = Rules(limit=8)
    event = samples.event("recompile", detail={"entries": entries, "under_checkpoint": checkpoint})
    assert len(rules.feed(event)) == alarms
    assert rules.feed(event) == []


def test_the_compile_budget_is_told_once() -> None:
    rules = Rules(compile_budget_s=5)
    told = [a.message for _ in range(5) for a in rules.feed(samples.compiled(seconds=2.0))]
    assert told == ["6.0 s of compile time, over the budget of 5 s"]


def plan(tmp_path: Path, *bounds: str, **fingerprint: Any) -> Path:
    """A plan for the installed versions with one regime for each text of bounds."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    regimes = [Regime(id=f"r{i}", bounds=(b,), representative=(2, 512, "")) for i, b in enumerate(bounds)]
    Plan(fingerprint={**dict.fromkeys(FINGERPRINT), **versions, **fingerprint}, regimes=tuple(regimes)).write(
        tmp_path / "plan.json"
    )
    return tmp_path / "plan.json"


def test_a_regime_is_planned_once_for_each_code(tmp_path: Path) -> None:
    planned = Planned.load(plan(tmp_path, "B*S < 1280", "S % 8 == 0"))
    first, again = samples.event("recompile", compile_id="0/0"), samples.event("recompile", compile_id="0/1")
    assert planned.foresees(first, (2, 512)) is True
    # The compile that belongs to the recompile asks again.
    assert planned.foresees(samples.compiled(compile_id="0/0"), (2, 512)) is True
    assert planned.foresees(again, (2, 520)) is False
    assert planned.foresees(again, (2, 1024)) is True
    assert planned.foresees(samples.event("recompile", compile_id="0/2"), (2, 1023)) is False
    assert planned.foresees(first, None) is None


def test_a_plan_for_another_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'was made for torch "1.0", this run has'):
        Planned.load(plan(tmp_path, "S > 0", torch="1.0"))


def test_another_file_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ValueError, match="plan"):
        Planned.load(tmp_path / "p.json")


def test_a_plan_for_other_ranks_or_another_attention_is_not_held_against_the_run(tmp_path: Path) -> None:
    planned = Planned.load(plan(tmp_path, "S > 0", world_size=8, attn="sdpa"))
    assert planned.differs(None, 8) is None
    assert "was made for world_size 8, this run has 2" in (planned.differs(None, 2) or "")
    model = SimpleNamespace(config=SimpleNamespace(_attn_implementation="eager"))
    assert 'was made for attn "sdpa", this run has "eager"' in (planned.differs(model, 8) or "")


def test_a_monitor_with_the_plan_of_another_run_says_so_and_goes_on(tmp_path: Path) -> None:
    with Monitor(run_dir=tmp_path / "run", plan=plan(tmp_path, "S > 0", world_size=8)) as monitor:
        monitor.step()
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["plan"] is None and "world_size 8" in settings["plan_refused"]
    assert monitor.steps == 1
