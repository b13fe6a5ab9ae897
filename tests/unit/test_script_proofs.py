"""Remedies tried on a script: those that reach it from outside, by rehearsing it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cftdiag.check import script_proofs
from cftdiag.check.launchers import Launch
from cftdiag.check.script import RankEnd, Rehearsed, ScriptOptions
from cftdiag.details import CompileDetail
from cftdiag.events import Code, Event
from cftdiag.findings import Finding, Remedy
from cftdiag.monitor.recorded_run import Run
from cftdiag.rehearse.settings import Outcome

DYNAMIC = Remedy(summary="dynamic", change={"dynamic": True})
SETTING = Remedy(summary="setting", change={"torch._dynamo.config.assume_static_by_default": False})
OWN = Remedy(summary="the script's", change={"drop_last": True})
WORDS = Remedy(summary="words")
RECOMPILE = Finding(
    kind="recompile",
    cause="seq_len",
    severity="warning",
    count=2,
    steps=(3,),
    remedies=(OWN, SETTING, DYNAMIC, WORDS),
)


def compiles_at(step: int) -> Event:
    code = Code(qualname="forward", file="train.py", line=1)
    return Event(kind="compile", time=0.0, rank=3, step=step, code=code, detail=CompileDetail(status="ok"))


def rehearsed(*findings: Finding) -> Rehearsed:
    run = Run(path=Path("run"), meta={}, sessions=())
    run.__dict__["findings"] = findings
    # what a finding is about compiles at its steps
    steps = [1, *(step for finding in findings for step in finding.steps)]
    run.__dict__["events"] = tuple(compiles_at(step) for step in steps)
    end = RankEnd(
        rank=3, exit_code=0, timed_out=False, outcome=Outcome(torch="2.13.0"), last_words="", seconds=1.0
    )
    return Rehearsed(launch=Launch(command=("python",)), run=run, ends=(end,), seconds=1.0, written=())


def test_remedy_from_outside_is_tried_on_the_script_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[ScriptOptions] = []

    def again(options: ScriptOptions, progress: Any) -> Rehearsed:
        tried.append(options)
        return rehearsed() if options.compile_kwargs.get("dynamic") else rehearsed(RECOMPILE)

    monkeypatch.setattr(script_proofs, "rehearse", again)
    options = ScriptOptions(command=("python", "train.py"), ranks=(3, 0), compile_kwargs={"mode": "default"})
    announced: list[str] = []
    (found,), left = script_proofs.prove(
        rehearsed(RECOMPILE), options, lambda event: announced.append(event.text)
    )
    verified = {remedy.summary: remedy.verified for remedy in found.remedies}
    assert verified == {"dynamic": True, "setting": False, "the script's": None, "words": None}
    assert found.remedies[0].summary == "dynamic"
    assert left == []
    # each alone, on the one rank that speaks, and over what was asked for
    assert [(o.ranks, dict(o.compile_kwargs), dict(o.torch_config)) for o in tried] == [
        ((3,), {"mode": "default"}, {"torch._dynamo.config.assume_static_by_default": False}),
        ((3,), {"mode": "default", "dynamic": True}, {}),
    ]
    assert set(announced) >= {"dynamic", "setting"}


def test_remedies_beyond_the_budget_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_proofs, "rehearse", lambda options, progress: rehearsed())
    options = ScriptOptions(command=("python",), verify_budget=0.0)
    (found,), left = script_proofs.prove(rehearsed(RECOMPILE), options, lambda event: None)
    assert all(remedy.verified is None for remedy in found.remedies)
    assert left and "0 s for proofs were used up" in left[0]
