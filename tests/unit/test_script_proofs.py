"""Remedies tried on a script: those that reach it from outside, by rehearsing it again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cftdiag.check import script, script_proofs
from cftdiag.check.launchers import Launch
from cftdiag.check.proof_steps import INTERRUPTED
from cftdiag.check.script import RankEnd, Rehearsed, ScriptOptions
from cftdiag.details import CompileDetail
from cftdiag.events import Code, Event
from cftdiag.findings import Finding, Remedy
from cftdiag.monitor.recorded_run import Run
from cftdiag.rehearse.settings import Fault, Outcome

DYNAMIC = Remedy(summary="dynamic", change={"dynamic": True})
SETTING = Remedy(summary="setting", change={"torch._dynamo.config.assume_static_by_default": False})
OWN = Remedy(summary="the script's", change={"mark_dynamic": {"x": [1]}})
LOADER = Remedy(summary="loader", change={"drop_last": True})
PAD = Remedy(summary="pad", change={"pad_to_multiple_of": 64})
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
    return Event(kind="compile", time=0.0, rank=3, step=step, code=code, detail=CompileDetail(graphs=1))


def rehearsed(*findings: Finding, applied: tuple[str, ...] = (), fault: Fault | None = None) -> Rehearsed:
    run = Run(path=Path("run"), meta={}, sessions=())
    run.__dict__["findings"] = findings
    # what a finding is about compiles at its steps
    steps = [1, *(step for finding in findings for step in finding.steps)]
    run.__dict__["events"] = tuple(compiles_at(step) for step in steps)
    end = RankEnd(
        rank=3, exit_code=0 if fault is None else 1, timed_out=False, last_words="", seconds=1.0,
        outcome=Outcome(torch="2.13.0", applied=applied, fault=fault),
    )  # fmt: skip
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
    proved = script_proofs.prove(rehearsed(RECOMPILE), options, lambda event: announced.append(event.text))
    (found,) = proved.findings
    verified = {remedy.summary: remedy.verified for remedy in found.remedies}
    assert verified == {"dynamic": True, "setting": False, "the script's": None, "words": None}
    assert found.remedies[0].summary == "dynamic"
    assert proved.notes == ("remedies that only the script's own code can take were not tried: mark dynamic",)
    # each alone, on all ranks that are compared, and over what was asked for
    assert [(o.ranks, dict(o.compile_kwargs), dict(o.torch_config)) for o in tried] == [
        ((3, 0), {"mode": "default"}, {"torch._dynamo.config.assume_static_by_default": False}),
        ((3, 0), {"mode": "default", "dynamic": True}, {}),
    ]
    (first,) = proved.change_first
    assert first["edit"] == "block.compile(dynamic=True)"
    assert (first["before"]["findings"], first["after"]["findings"]) == (1, 0)
    assert announced[0].startswith("viable with recompiles: recompile ")
    assert announced[1:] == [
        "remedy 1 of 3: the script's",
        "remedy 2 of 3: setting",
        "remedy 3 of 3: dynamic",
    ]


def test_what_was_proved_before_ctrl_c_is_kept(monkeypatch):
    tried = []

    def again(options, progress):
        tried.append(options)
        if options.compile_kwargs.get("dynamic"):
            raise KeyboardInterrupt
        return rehearsed(RECOMPILE)

    monkeypatch.setattr(script_proofs, "rehearse", again)
    proved = script_proofs.prove(
        rehearsed(RECOMPILE), ScriptOptions(command=("python", "train.py")), lambda event: None
    )
    (found,) = proved.findings
    verified = {remedy.summary: remedy.verified for remedy in found.remedies}
    assert (verified["setting"], verified["dynamic"]) == (False, None)
    assert proved.notes[0] == INTERRUPTED and proved.change_first == () and len(tried) == 2


def test_remedies_beyond_the_budget_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_proofs, "rehearse", lambda options, progress: rehearsed())
    options = ScriptOptions(command=("python",), verify_budget=0.0)
    proved = script_proofs.prove(rehearsed(RECOMPILE), options, lambda event: None)
    assert all(remedy.verified is None for remedy in proved.findings[0].remedies)
    assert "0 s for proofs were used up" in proved.notes[-1]


def test_change_that_met_nothing_in_the_script_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(options: ScriptOptions, progress: Any) -> Rehearsed:
        # the script has a data loader, and no collator that pads
        return rehearsed(applied=("drop_last",) if options.drop_last else ())

    monkeypatch.setattr(script_proofs, "rehearse", again)
    finding = dataclasses.replace(RECOMPILE, remedies=(PAD, LOADER))
    proved = script_proofs.prove(rehearsed(finding), ScriptOptions(command=("python",)), lambda event: None)
    verified = {r.summary: (r.verified, r.edit) for r in proved.findings[0].remedies}
    assert verified == {
        "loader": (True, "DataLoader(..., drop_last=True)"),
        "pad": (None, "pad_to_multiple_of=64  # of the collator or the tokenizer"),
    }
    assert "pad to multiple of" in proved.notes[0]


FAULT = Fault(error="KeyError", message="'loss'", file="train.py", line=7)


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (FAULT, "; it fails with plain arithmetic and without torch.compile too"),
        (None, "it is the rehearsal that breaks it"),
        (dataclasses.replace(FAULT, line=9), None),
    ],
)
def test_failure_is_told_whose_it_is_by_plain_arithmetic(
    monkeypatch: pytest.MonkeyPatch, again: Fault | None, said: str | None
) -> None:
    asked: list[ScriptOptions] = []

    def plain(options: ScriptOptions, progress: Any) -> Rehearsed:
        asked.append(options)
        return rehearsed(fault=again)

    monkeypatch.setattr(script, "rehearse", plain)
    options = ScriptOptions(command=("python",), ranks=(3, 0), target="h200")
    judged = script.with_blame(rehearsed(fault=FAULT), options, lambda event: None)
    assert [(o.plain, o.ranks, o.target) for o in asked] == [(True, (3,), None)]
    if said is None:
        assert judged.blame is None
    else:
        assert judged.blame is not None and judged.blame.text().endswith(said)


def test_failure_to_compile_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "rehearse", lambda options, progress: pytest.fail("rehearsed again"))
    broken = rehearsed(fault=dataclasses.replace(FAULT, compile=True))
    options = ScriptOptions(command=("python",))
    assert script.with_blame(broken, options, lambda event: None) is broken
