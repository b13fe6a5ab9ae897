"""Arms, what makes two runs comparable, and the table: on steps made by hand."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest

from cftdiag.bench.arms import EAGER, Arm, of_command, of_options
from cftdiag.bench.driver import Run, Sample
from cftdiag.bench.same import differences
from cftdiag.bench.summary import to_dict
from cftdiag.cli.main import run as command
from cftdiag.details import StepDetail
from cftdiag.errors import InputError
from cftdiag.events import Event
from cftdiag.monitor import comparable, load_run, report
from cftdiag.report import bench as view
from cftdiag.report.bench_plot import figure, save
from cftdiag.report.console import console_for
from tests.unit import monitor_samples as samples

FACTS = {
    "torch": "2.13", "device": "cpu", "threads": 1, "world_size": 1, "optimizer": "AdamW", "parameters": {"float32": 10},
}  # fmt: skip
WHAT = {"subject": "tiny", "together": True, "rounds": 2, "steps": 8}


def run(arm: str, seconds: list[float], number: int = 0, **changed: Any) -> Run:
    """Steps 1, 2, ... of one arm; the first has no time, and a compiled arm compiles in it."""
    times = [None, *seconds]
    made = Run(
        arm=arm, round=number, facts=FACTS, peak_bytes=10**9,
        samples=[
            Sample(step=i, seconds=t, cpu_seconds=t, loss=4.0 - i / 10, shapes=((2, 8),), tokens=16)
            for i, t in enumerate(times, 1)
        ],
        report=compiled([] if arm == EAGER else [1], 6.0 if number == 0 else 2.0),
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def compiled(steps: list[int], seconds: float) -> dict[str, Any]:
    return {
        # forward and backward of each
        "compiles": [{"rank": 0, "step": step, "status": "ok"} for step in steps for _ in range(2)],
        "by_rank": [{"rank": 0, "compiles": len(steps), "recompiles": max(len(steps) - 1, 0)}],
        "recompiles": [],
        "timing": {"compile_s": seconds if steps else 0.0},
    }


ARMS = of_options(["block"])


def summary(*runs: Run, arms: tuple[Arm, ...] = ARMS, **options: Any) -> dict[str, Any]:
    return to_dict(arms, runs, what=WHAT, warmup=2, **options)


def test_arms_of_a_model_are_a_scope_and_changes() -> None:
    eager, first, second = of_options(["block+loss,ac=full,pad=64", "dynamic=auto"])
    assert (eager.name, eager.changes) == (EAGER, {"scope": "none"})
    assert first.changes == {"scope": "block+loss", "ac": "full", "pad": 64}
    assert second.changes == {"scope": "block", "dynamic": "auto"}
    assert [a.name for a in of_options(["all"])] == [
        EAGER, "block", "loss", "block+loss", "model", "model+loss",
    ]  # fmt: skip
    assert of_options([], own_scope="model")[1].changes == {"scope": "model"}
    assert of_options(["method=lora"])[1].may_differ == {"parameters", "optimizer", "loss"}


@pytest.mark.parametrize(
    "text", ["blocks", "block,ac=some", "block,colour=red", "pad=0", "pad=x", "backend=", "", "block,"]
)
def test_an_arm_that_says_nothing_known_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--arm {text}")):
        of_options([text])
    with pytest.raises(InputError, match="twice"):
        of_options(["block", "block"])


def test_arms_of_a_command_add_variables_and_words() -> None:
    eager, own = of_command([])
    # the second of them, for fullgraph=True raises under the first alone from torch 2.14 on
    assert eager.env == {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    assert (own.name, own.env, own.arguments) == ("compiled", {}, ())
    _, padded = of_command(["padded: A=1 B='x y' --pad 64 C=2"])
    assert (padded.env, padded.arguments) == ({"A": "1", "B": "x y"}, ("--pad", "64", "C=2"))
    for text in ("padded", ": --pad 1", "x: 'open"):
        with pytest.raises(InputError, match="--arm"):
            of_command([text])


def test_steps_are_compared_in_pairs_and_those_that_compile_are_not() -> None:
    late = compiled([1, 5], 6.0)
    data = summary(
        run(EAGER, [9, 2.0, 2.2, 50.0, 2.0, 2.0, 2.0, 2.0]),
        run("block", [9, 1.0, 1.1, 30.0, 1.0, 1.0, 1.0, 1.0], report=late),
        run(EAGER, [9, 2.0], 1),
        run("block", [9, 1.0], 1),
    )
    eager, block = data["arms"]
    assert eager["against_eager"] is None and eager["steps"] == 8
    assert block["late_compiles"] == [5] and block["steps"] == 7
    assert (eager["graphs"], block["graphs"], block["recompiles"]) == (0, 2, 1)
    against = block["against_eager"]
    assert against["pairs"] == 7 and against["gain"] == {"median": 2.0, "low": 2.0, "high": 2.0, "count": 7}
    assert against["saved_seconds"]["median"] == pytest.approx(1.0)
    assert (block["compile_seconds_cold"], block["compile_seconds_warm"]) == (6.0, 2.0)
    assert against["break_even_cold"]["median"] == 6 and against["break_even_warm"]["median"] == 2
    assert against["saved_per_1000_steps"]["median"] == pytest.approx(994)
    assert block["tokens_per_second"] == pytest.approx(16 / 1.0, rel=0.02)
    assert block["loss"] == {"first": 0.0, "most": 0.0, "steps": 12}


def test_a_loss_that_moves_away_is_told() -> None:
    other = run("block", [1.0] * 7)
    other.samples[4] = dataclasses.replace(other.samples[4], loss=3.5 * 1.01)
    [_, block] = summary(run(EAGER, [2.0] * 7), other)["arms"]
    assert block["loss"]["first"] == 0 and block["loss"]["most"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("change", "said", "allow"),
    [
        ({"facts": {**FACTS, "threads": 2}}, "threads 2, not 1", None),
        ({"facts": {**FACTS, "world_size": 2}}, "ranks 2, not 1", None),
        ({"facts": {**FACTS, "optimizer": "SGD"}}, "optimizer SGD, not AdamW", "optimizer"),
        (
            {"facts": {**FACTS, "parameters": {"bfloat16": 10}}},
            "10 bfloat16 parameters trained, not 10 float32 parameters trained",
            "parameters",
        ),
    ],
)
def test_runs_that_differ_in_more_than_the_arm_are_not_compared(
    change: dict[str, Any], said: str, allow: str | None
) -> None:
    runs = run(EAGER, [2.0] * 7), run("block", [1.0] * 7, **change)
    [_, block] = summary(*runs)["arms"]
    assert block["differs"] == [said] and block["against_eager"] is None
    if allow is not None:
        assert summary(*runs, allowed=[allow])["arms"][1]["against_eager"]["gain"]["median"] == 2.0


def test_other_batches_and_another_first_loss_are_another_run() -> None:
    apart = differences(FACTS, FACTS, batches=([((2, 8),), ((2, 8),)], [((2, 8),), ((2, 16),)]))
    assert apart == ["batches 2x16 in step 2, not 2x8"]
    assert differences(FACTS, FACTS, batches=([()], [((2, 16),)])) == [], (
        "what was not seen is not held against it"
    )
    assert differences(FACTS, FACTS, losses=(4.0, 4.1)) == []
    assert differences(FACTS, FACTS, losses=(4.0, 4.4))[0].startswith("loss 4.4 in step 1, not 4")
    assert differences(FACTS, FACTS, losses=(4.0, 4.4), may_differ=["loss"]) == []


def test_the_table_says_what_it_gains_and_when_it_has_paid() -> None:
    data = summary(run(EAGER, [2.0] * 7), run("block", [1.0] * 7))
    out = io.StringIO()
    view.show(console_for(out, 200), data)
    text = out.getvalue()
    assert "2.00x (2.00-2.00)" in text and "6 steps (6-6)" in text and "16" in text
    assert "gains 2.000x over eager (2.000-2.000 with 95% confidence, 6 pairs of steps)" in text
    assert "1,000 steps saves 994.0 s" in text
    nothing = summary(run(EAGER, [2.0] * 7), run("block", [1.0] * 7, report=compiled([], 0.0)))
    assert view._row(nothing["arms"][1])[-1] == "" and "1,000" not in " ".join(view.sentences(nothing))
    slow = summary(run(EAGER, [1.0] * 7), run("block", [2.0] * 7))
    assert (
        "it costs time here" in " ".join(view.sentences(slow))
        and view.steps({"low": None, "median": None, "high": None}) == "never"
    )
    same = summary(run(EAGER, [1.0, 1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.0]), run("block", [1.0] * 8))
    assert "may be nothing" in " ".join(view.sentences(same))


def test_what_failed_or_was_stopped_is_shown_with_what_ran(tmp_path: Path) -> None:
    stopped = run("block", [], failed="exit code 1 in step 1: ValueError: no", samples=[])
    data = summary(run(EAGER, [2.0] * 7), stopped, interrupted=True)
    text = " ".join(view.sentences(data))
    assert "block: failed: exit code 1 in step 1: ValueError: no" in text and "interrupted" in text
    assert [p.name for p in save(data, tmp_path)] == ["bench.png", "bench.svg"]
    with pytest.raises(ValueError, match="nothing to draw"):
        figure(summary(stopped))
    assert save(summary(stopped), tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --model, --config and a command"),
        (["--model", "m", "--config", "r.yaml"], "give one of"),
        (["--model", "no-such-model"], "no catalogue name"),
        (["--model", "Qwen3-4B", "--arm", "blocks"], "--arm blocks"),
        (["--model", "Qwen3-4B", "--steps", "3", "--warmup", "3"], "leaves nothing"),
        (["--config", "none.yaml"], "cannot be read"),
        (["--lengths", "512", "--", "python", "x.py"], "--lengths is decided by the command"),
        (["--ranks", "2", "--", "python", "x.py"], "put it into the command"),
        (["--", "no-such-program"], "cannot start no-such-program"),
    ],
)
def test_a_wrong_request_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert command(["bench", "-q", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


def test_an_eager_run_of_something_else_is_refused(tmp_path: Path) -> None:
    def recorded(name: str, *more: Any, **head: Any) -> Path:
        return samples.write_run(
            tmp_path / name, {0: [samples.head(**head), *more, samples.steps(1, [3.0, 0.5, 0.5])]}
        )

    def trained(count: int) -> Event:
        return Event(kind="step", time=1001.0, rank=0, step=1, detail=StepDetail(trained={"float32": count}))

    mine = recorded(
        "mine", trained(6), samples.compiled(), trainer={"batch_size": 8, "compile_scope": "block"}
    )
    same = recorded("same", trainer={"batch_size": 8, "compile_scope": "none"})
    assert report(mine, eager=same)["timing"]["eager_step_s"] == 0.5
    wrong = {
        "ranks 2, not 1": recorded("ranks", world_size=2),
        "1 graphs compiled in it": recorded("compiled", samples.compiled()),
        "trained parameters 8 float32, not 6 float32": recorded("model", trained(8)),
        "batch-size 4, not 8": recorded("batch", trainer={"batch_size": 4, "compile_scope": "none"}),
    }
    for said, path in wrong.items():
        assert comparable.differences(load_run(mine), load_run(path)) == [said]
        with pytest.raises(ValueError, match=said):
            report(mine, eager=path)
    assert command(["report", str(mine), "--eager", str(wrong["ranks 2, not 1"])]) == 2


def test_an_arm_of_a_method_trains_it_whatever_the_file_says(tmp_path: Path) -> None:
    from trainer.bench import write_arm
    from trainer.config import TrainConfig

    (tmp_path / "run.yaml").write_text("demo: true\nlora: true\n")
    for method in ("qlora", "qat", "full", "osft"):
        written = write_arm(
            str(tmp_path / "run.yaml"), {"scope": "block", "method": method}, tmp_path / method, steps=3
        )
        config = TrainConfig.from_yaml(written)
        assert (config.method, config.scope, config.max_steps) == (method, "block", 4)
