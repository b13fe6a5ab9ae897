"""The report of a rehearsed command, from what its ranks left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cftdiag.check.launchers import Launch
from cftdiag.check.script import RankEnd, Rehearsed, ScriptOptions, judge_ends
from cftdiag.check.script_report import build
from cftdiag.details import CompileDetail
from cftdiag.errors import CheckError, EnvironmentUnfit, InputError
from cftdiag.events import Event
from cftdiag.findings import Finding, Where
from cftdiag.monitor.recorded_run import Run
from cftdiag.monitor.run_files import Session, Step
from cftdiag.rehearse.settings import CallbackEffect, EagerShare, Fault, Outcome, StateChange
from cftdiag.report import wording

OPTIONS = ScriptOptions(command=("python", "train.py"), steps=3)


def compiled(block: str, step: int, compile_id: str) -> Event:
    return Event(
        kind="compile", time=float(step), step=step, compile_id=compile_id, block=block, block_class="Block",
        region="forward", seconds={"total": 1.5}, detail=CompileDetail(graphs=1, batch=(2, 16)),
    )  # fmt: skip


def rehearsed(*events: Event, steps: int = 3, outcome: Outcome | None = None, code: int = 0) -> Rehearsed:
    session = Session(
        rank=0,
        file="rank00000.jsonl",
        events=list(events),
        steps=[Step(rank=0, step=i + 1, seconds=0.1, time=float(i), shapes=((2, 16),)) for i in range(steps)],
        blocks=[("layers.0", "Block"), ("layers.1", "Block"), ("head", "Linear")],
    )
    end = RankEnd(
        rank=0, exit_code=code, timed_out=False, last_words="", seconds=2.0,
        outcome=outcome or Outcome(torch="2.13.0", ended_by_limit=True, evaluated=True),
    )  # fmt: skip
    return Rehearsed(
        launch=Launch(command=("python", "train.py")),
        run=Run(path=Path("run"), meta={}, sessions=(session,)),
        ends=(end,),
        seconds=2.5,
        written=("/work/out/model.safetensors",),
    )


def test_blocks_of_one_kind_share_graphs_and_others_do_not() -> None:
    report = build(rehearsed(compiled("layers.0", 1, "0/0")), OPTIONS, ())
    assert {b.fqn: (b.graphs, b.fullgraph) for b in report.blocks} == {
        "layers.0": (1, True),
        "layers.1": (1, True),
        "head": (0, None),
    }
    assert report.verdict == "viable"
    (row,) = report.compiles
    assert (row["step"], row["length"], row["batch_size"], row["cause"]) == (1, 16, 2, None)
    data = report.to_dict()
    assert data["script"]["batches"][0] == {"step": 1, "shapes": [[2, 16]]}
    lines = wording.script_lines(data)
    assert lines[0] == "3 steps rehearsed, the script ended after 3 steps"
    assert "1 file went to a scratch folder" in lines[1]


def test_first_step_has_the_batch_that_it_compiled_for() -> None:
    seen = rehearsed(compiled("layers.0", 1, "0/0"))
    (session,) = seen.run.sessions
    session.steps[0] = dataclasses.replace(session.steps[0], shapes=())
    session.steps[1] = dataclasses.replace(session.steps[1], shapes=())
    data = build(seen, OPTIONS, ()).to_dict()
    assert [batch["step"] for batch in data["script"]["batches"]] == [1, 3]
    assert data["subject"]["lengths"] == [16, 16]


def test_layers_of_a_model_compiled_as_a_whole_are_named() -> None:
    outcome = Outcome(torch="2.13.0", members=(("model.layers.0", "Layer"), ("model.layers.1", "Layer")))
    report = build(rehearsed(compiled("<root>", 1, "0/0"), outcome=outcome), OPTIONS, ())
    assert {b.fqn: b.graphs for b in report.blocks if b.cls == "Layer"} == {
        "model.layers.0": 1,
        "model.layers.1": 1,
    }


def test_share_of_the_step_that_is_compiled() -> None:
    outcome = Outcome(
        torch="2.13.0", parameters=200, compiled_parameters=150, compiled_flops=90.0, eager_flops=10.0,
        eager=(EagerShare(name="lm_head", flops=10.0, parameters=50),),
    )  # fmt: skip
    data = build(rehearsed(compiled("layers.0", 1, "0/0"), outcome=outcome), OPTIONS, ()).to_dict()
    assert data["coverage"]["parameters"] == 0.75 and data["coverage"]["flops"] == 0.9
    assert wording.coverage_line(data) == [
        "compiled: 75 % of the parameters, 90 % of the operations; eager: lm_head"
    ]


def test_callbacks_are_told_with_the_recompiles_of_what_they_set() -> None:
    change = StateChange(
        step=2, attribute="requires_grad", names=("layers.0.weight", "layers.1.weight"), count=5, before=False,
        after=True,
    )  # fmt: skip
    rows = (
        CallbackEffect(name="Unfreeze", calls=3, changes=(change,)),
        CallbackEffect(name="Sample", calls=1, flops=30.0, reads=2, recompiles=1),
        CallbackEffect(name="Count", calls=3),
    )
    outcome = Outcome(torch="2.13.0", compiled_flops=90.0, eager_flops=10.0, callbacks=rows)
    seen = rehearsed(compiled("layers.0", 1, "0/0"), outcome=outcome)
    met, other = recompile("requires_grad", 2), recompile("seq_len", 2)
    data = build(seen, OPTIONS, (met, other)).to_dict()
    assert [row["share"] for row in data["script"]["callbacks"]] == [0.0, 0.3, 0.0]
    assert wording.callback_lines(data) == [
        "callback Unfreeze, 3 calls: sets requires_grad of layers.0-1.weight and 3 more from False to True for step 2, "
        "where it recompiles (requires_grad)",
        "callback Sample, 1 call: 30 % of the operations; 1 recompile; 2 reads of what the step computes, each of which "
        "waits for the device",
        "callbacks that change and compile nothing: Count",
    ]


def recompile(cause: str, step: int) -> Finding:
    return Finding(kind="recompile", cause=cause, severity="warning", where=Where(), steps=(step,))


def test_script_that_fails_midway_gives_no_conclusion() -> None:
    fault = Fault(error="KeyError", message="'loss'", file="/work/train.py", line=7)
    broken = rehearsed(
        compiled("layers.0", 1, "0/0"), steps=2, outcome=Outcome(torch="2.13.0", fault=fault), code=1
    )
    judge_ends(broken, OPTIONS)
    report = build(broken, OPTIONS, ())
    assert (report.verdict, report.exit_code()) == ("error", 3)
    assert report.undetermined[0].startswith(
        "the script made 2 of 3 steps: KeyError: 'loss' at train.py:7; not known"
    )


def test_nothing_compiled_gives_no_conclusion() -> None:
    report = build(rehearsed(), OPTIONS, ())
    assert report.exit_code() == 3
    assert "nothing was compiled" in report.undetermined[0]


@pytest.mark.parametrize(
    ("fault", "code", "kind", "part"),
    [
        (Fault(error="SyntaxError", message="bad"), 1, InputError, "SyntaxError: bad; mend the command"),
        (
            Fault(error="RuntimeError", message="no"),
            1,
            EnvironmentUnfit,
            "not known whether it fails outside",
        ),
        (None, 5, InputError, "ended with exit code 5 before its first step, last saying: bye"),
        (None, -9, InputError, "exit code"),
        (None, 0, InputError, "without an optimizer step; give the command"),
    ],
)
def test_command_that_makes_no_step_is_one_line(
    fault: Fault | None, code: int, kind: type[CheckError], part: str
) -> None:
    nothing = rehearsed(steps=0, outcome=Outcome(torch="2.13.0", fault=fault), code=code)
    ends = (dataclasses.replace(nothing.first, last_words="bye"),)
    with pytest.raises(kind, match=part):
        judge_ends(dataclasses.replace(nothing, ends=ends), OPTIONS)


@pytest.mark.parametrize(
    ("fault", "programs", "kind", "part"),
    [
        (Fault(error="FileNotFoundError", message="out"), (), InputError, "mend the command"),
        (Fault(error="FileNotFoundError", message="out"), ("mkdir",), EnvironmentUnfit, "scratch folder alone"),
        (Fault(error="PermissionError", message="out"), (), EnvironmentUnfit, "scratch folder alone"),
        (Fault(error="ModuleNotFoundError", message="no", missing="xformers.ops"), (), EnvironmentUnfit, "imports xformers"),
        (Fault(error="ModuleNotFoundError", message="no", missing="mine"), (), InputError, "mend the command"),
    ],
)  # fmt: skip
def test_failure_of_the_surroundings_is_not_laid_on_the_script(
    fault: Fault, programs: tuple[str, ...], kind: type[CheckError], part: str
) -> None:
    outcome = Outcome(torch="2.13.0", fault=fault, programs=programs)
    with pytest.raises(kind, match=part):
        judge_ends(rehearsed(steps=0, outcome=outcome, code=1), OPTIONS)


def test_script_that_compiles_and_never_trains_is_one_line() -> None:
    compiles = rehearsed(compiled("layers.0", 0, "0/0"), steps=0, outcome=Outcome(torch="2.13.0"))
    with pytest.raises(InputError, match="without an optimizer step"):
        judge_ends(compiles, OPTIONS)


def test_options_that_exclude_one_another(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="drop --weights or --target"):
        ScriptOptions(command=("python",), weights=True, target="h200")
    (tmp_path / "old").write_text("")
    with pytest.raises(InputError, match="is not empty; give --keep a new folder"):
        ScriptOptions(command=("python",), keep=str(tmp_path))
