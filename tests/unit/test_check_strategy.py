"""Which passes a check runs and which it spares; and what it makes of their messages. No process is started:
a launcher hands out typed messages.
"""

from __future__ import annotations

import dataclasses
import os

import pytest

from cftdiag.check import strategy
from cftdiag.check.driver import _undone, run
from cftdiag.check.judge import judge, make_context, only_uneven, raised_events
from cftdiag.check.outcome import is_compile
from cftdiag.check.runner import BuiltPass, PassResult, Runner, gather
from cftdiag.details import BreakDetail, CompileDetail, ErrorDetail
from cftdiag.diagnose.engine.probes import Numerics
from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.events import Event, Frame
from cftdiag.findings import Finding, Where
from cftdiag.options import CheckOptions
from cftdiag.passes.launch import fork_child
from cftdiag.passes.messages import (
    Assumption,
    NeverRan,
    Observed,
    Program,
    ProgramBlock,
    ProgressEvent,
    Raised,
    Refused,
    Result,
    StepDone,
    StepShape,
    Unfit,
)
from cftdiag.report import wording
from cftdiag.subject import Origin

OPTIONS = CheckOptions(model="m.py:build")
ORIGIN = Origin(type="file", name="m.py:build", path="m.py")
PROGRAM = Program(
    mode="collect",
    depth="joint",
    weightless=False,
    parameters=100,
    model_class="Model",
    model_type=None,
    compile_kwargs={},
    wrap=False,
    blocks=(
        ProgramBlock(fqn="layers.0", cls="Block", kind="Block", index=0),
        ProgramBlock(fqn="layers.1", cls="Block", kind="Block", index=1),
    ),
    steps=(StepShape(step=1, batch_size=2, length=8), StepShape(step=2, batch_size=2, length=12)),
    untouched=(),
    limit=8,
    config_sha=None,
    build_seconds=0.0,
)
RAN = Result(
    graphs={"layers.0": ("0/0",), "layers.1": ("0/0",)},
    fullgraph={},
    calls={"layers.0": 2, "layers.1": 2},
)
RAISED = Raised(
    error="RuntimeError",
    message="shapes differ",
    compile=False,
    where=Frame(file="/home/me/m.py", line=7, function="forward", code="x @ y"),
    step=1,
)


def compiled(number=0, *, unbacked=False, status="ok", region="forward"):
    return Event(
        kind="compile",
        time=0.0,
        step=1,
        compile_id=f"0/{number}",
        block="layers.0",
        region=region,
        seconds={"total": 0.5},
        detail=CompileDetail(status=status, graphs=1, unbacked=unbacked),
    )


COMPILED = (compiled(),)


def built(mode="collect", *, program=PROGRAM, result=RAN, events=COMPILED, **more):
    more = {"outcome": "ok", **more}
    program = dataclasses.replace(program, mode=mode)
    return BuiltPass(mode=mode, program=program, result=result, events=tuple(events), **more)


def whole(**more):
    captured = dataclasses.replace(RAN, fullgraph={"layers.0": True, "layers.1": True})
    return built("fullgraph", **{"result": captured, **more})


def refused(**more):
    captured = dataclasses.replace(RAN, fullgraph={"layers.0": True, "layers.1": False})
    return built("fullgraph", **{"result": captured, **more})


BREAK = Event(kind="graph_break", time=0.0, step=1, block="layers.0", detail=BreakDetail(gb_id="GB0025"))


# ---- which passes ----


@pytest.mark.parametrize(
    "first, why",
    [
        (built(), strategy.NO_BREAK),
        (whole(), "every block was captured whole"),
        (built(program=dataclasses.replace(PROGRAM, wrap=True)), "the subject compiles itself"),
        (built(outcome="timeout"), "the first pass did not end in time"),
    ],
)
def test_a_second_pass_that_cannot_differ_is_spared(first, why):
    assert (strategy.why_no_second(first, forks=True) or "").startswith(why)


@pytest.mark.parametrize(
    "first, second",
    [
        (built(events=(compiled(), BREAK)), "fullgraph"),
        (built(result=dataclasses.replace(RAN, graphs={"layers.0": ("0/0",)})), "fullgraph"),
        (built(result=dataclasses.replace(RAN, calls={})), "fullgraph"),
        (built(events=(compiled(status="failed"),)), "fullgraph"),
        (built(raised=RAISED), "fullgraph"),
        (refused(), "collect"),
        (whole(events=(compiled(unbacked=True),)), "collect"),
        (whole(raised=RAISED), "collect"),
    ],
    ids=["a break", "no graph", "not called", "failed", "raised", "refused", "unbacked", "whole, raised"],
)
def test_a_second_pass_that_can_differ_is_run(first, second):
    assert strategy.why_no_second(first, forks=True) is None and strategy.second_mode(first) == second


def test_without_forking_nothing_runs_twice():
    assert strategy.why_no_second(refused(), forks=False)
    assert not strategy.compares_numerics(built(), OPTIONS, forks=False)


@pytest.mark.parametrize(
    "first, second, main, breaks, captured",
    [
        (whole(), None, 0, None, 0),
        (whole(), built(), 0, 1, 0),
        (refused(), built(), 1, 1, 0),
        (refused(), PassResult(mode="collect"), 0, 1, 0),
        (built(), None, 0, 0, None),
        (built(), whole(), 0, 0, 1),
    ],
    ids=["whole", "whole and unbacked", "refused", "refused, crash", "collect", "collect, then whole"],
)
def test_the_subjects_own_way_decides_unless_it_compiled_nothing(first, second, main, breaks, captured):
    chosen = strategy.choose(first, second)
    passes = (first, second)
    assert chosen.main is passes[main]
    assert chosen.breaks is (None if breaks is None else passes[breaks])
    assert chosen.whole is (None if captured is None else passes[captured])


@pytest.mark.parametrize(
    "first, options, wanted",
    [
        (built(), OPTIONS, True),
        (built(program=dataclasses.replace(PROGRAM, weightless=True)), OPTIONS, False),
        (built(raised=RAISED), OPTIONS, False),
        (built(program=dataclasses.replace(PROGRAM, parameters=10_000_000)), OPTIONS, False),
        (built(program=dataclasses.replace(PROGRAM, parameters=9_999_999)), OPTIONS, True),
        (
            built(program=dataclasses.replace(PROGRAM, parameters=10_000_000)),
            CheckOptions(model="m", numerics=True),
            True,
        ),
    ],
)
def test_small_models_with_weights_are_held_against_eager(first, options, wanted):
    assert strategy.compares_numerics(first, options, forks=True) is wanted


@pytest.mark.parametrize(
    "kinds, unbacked, routing, wanted",
    [
        (("planted", "read"), False, "balanced", True),
        (("planted",), True, "balanced", True),
        (("planted",), False, "balanced", False),
        (("read",), True, "balanced", False),
        (("planted", "read"), False, "idle_and_single", False),
    ],
)
def test_uneven_routing_is_tried_where_an_assumed_one_reached_python(kinds, unbacked, routing, wanted):
    notes = tuple(Assumption(meaning=k, what=k) for k in kinds)
    first = built(result=dataclasses.replace(RAN, undetermined=notes), events=(compiled(unbacked=unbacked),))
    options = CheckOptions(model="m", routing=routing)
    assert strategy.tries_uneven_routing(first, options, forks=True) is wanted


@pytest.mark.parametrize(
    "first, said",
    [
        (PassResult(mode="auto", outcome="timeout"), "was not built within 600 s"),
        (PassResult(mode="auto", detail="killed by SIGKILL"), "ended: killed by SIGKILL"),
        (PassResult(mode="auto"), "ended: no reason given"),
    ],
)
def test_a_model_that_was_not_built_ends_the_check(first, said):
    with pytest.raises(EnvironmentUnfit, match=said):
        strategy.built(first, 600.0)


def test_a_failure_of_eager_code_is_the_programs_own():
    failure = strategy.own_failure(built(raised=RAISED), built("eager", raised=RAISED))
    assert isinstance(failure, InputError)
    assert str(failure) == ("step 1 fails without torch.compile too: RuntimeError: shapes differ at m.py:7")
    other = dataclasses.replace(RAISED, error="ValueError")
    assert strategy.own_failure(built(raised=RAISED), built("eager", raised=other)) is None
    assert strategy.own_failure(built(raised=RAISED), built("eager")) is None
    assert strategy.needs_eager(built(raised=RAISED))
    assert not strategy.needs_eager(built(raised=dataclasses.replace(RAISED, compile=True)))


def test_proofs_take_one_block_of_a_kind_and_the_lengths_that_compile():
    config = Origin(type="config", name="m")
    assert strategy.proof_options(OPTIONS, config, (8, 12)).subject.lengths == (8, 12)
    assert strategy.proof_options(OPTIONS, config, None).subject.layers == "auto"
    assert strategy.proof_options(CheckOptions(model="m", layers="3"), config, None).subject.layers == "3"
    assert strategy.proof_options(OPTIONS, ORIGIN, None) == OPTIONS


# ---- what the messages come to ----


def test_messages_come_to_one_result():
    shown = []
    progress = ProgressEvent(phase="step", step=1, of=2, length=8)
    step = StepDone(step=1, batch_size=2, length=8, seconds=0.1)
    result = gather("auto", [progress, PROGRAM, Observed(event=compiled()), step, RAISED, RAN], shown.append)
    assert isinstance(result, BuiltPass) and result.mode == "collect" and result.program is PROGRAM
    assert (result.events, result.steps, result.raised, result.result) == (
        (compiled(),),
        (step,),
        RAISED,
        RAN,
    )
    assert shown == [progress] and result.last == progress
    assert not isinstance(gather("auto", [progress]), BuiltPass)


@pytest.mark.parametrize(
    "message, error", [(Refused(message="no"), InputError), (Unfit(message="no"), EnvironmentUnfit)]
)
def test_a_refusal_ends_the_pass(message, error):
    with pytest.raises(error, match="no"):
        gather("auto", [message])


@pytest.mark.parametrize(
    "event, counts",
    [
        (compiled(), True),
        (compiled(status="failed"), False),
        (compiled(region="backward"), False),
        (BREAK, False),
    ],
)
def test_a_compile_is_a_graph_of_a_forward_that_came_out(event, counts):
    assert is_compile(event) is counts


def test_an_exception_of_the_step_is_told_once():
    [event] = raised_events(built(raised=RAISED))
    assert (event.kind, event.failed.type, event.stack[-1].line) == ("error", "RuntimeError", 7)
    known = Event(kind="error", time=0.0, detail=ErrorDetail(type="RuntimeError", message="shapes differ"))
    assert raised_events(built(raised=RAISED, events=(known,))) == []
    assert raised_events(built()) == []


def test_blocks_that_the_step_never_called_are_known_to_the_diagnosis():
    idle = built(result=dataclasses.replace(RAN, calls={"layers.0": 2}))
    assert make_context(idle, OPTIONS).probes.never_run == ("layers.1",)
    assert not make_context(built(), OPTIONS).probes.never_run
    assert not make_context(built(raised=RAISED, result=idle.result), OPTIONS).probes.never_run
    silent = NeverRan(name="layers.1", cls="Block", skipped_file=None)
    called = dataclasses.replace(RAN, graphs={}, never_ran=(silent,))
    assert not make_context(built(result=called), OPTIONS).probes.never_run  # it runs eager
    skipped = dataclasses.replace(
        called, never_ran=(dataclasses.replace(silent, skipped_file="torch/nn/x.py"),)
    )
    assert make_context(built(result=skipped), OPTIONS).probes.never_run == ("layers.1",)


def test_a_failed_recomputation_is_booked_on_its_block():
    [event] = raised_events(built(raised=dataclasses.replace(RAISED, block="layers.1")))
    assert event.block == "layers.1"


def test_a_block_counts_as_captured_only_where_a_pass_showed_it():
    assert make_context(built(), OPTIONS).fullgraph == {"layers.0": None, "layers.1": None}
    assert make_context(built(), OPTIONS, whole=refused()).fullgraph == {
        "layers.0": True,
        "layers.1": False,
    }
    shown = make_context(built(), OPTIONS, captures_all=True).fullgraph
    assert shown == {"layers.0": True, "layers.1": True}


def test_breaks_of_the_other_pass_are_judged_with_the_main_one():
    main, other = whole(), built(events=(compiled(), BREAK, compiled(1)))
    outcome = judge(main, other, make_context(main, OPTIONS, whole=main))
    assert [f.kind for f in outcome.findings] == ["graph_break"]
    assert outcome.compiles == 1 and outcome.ended


def test_uneven_routing_tells_only_what_is_new():
    known = Finding(kind="recompile", cause="seq_len", severity="warning", where=Where(file="m.py", line=1))
    new = dataclasses.replace(known, cause="size_0_1")
    [told] = only_uneven([known, new], [known])
    assert told.cause == "size_0_1" and "single token" in told.evidence[0]


# ---- a whole check, its passes told by a launcher that forks no torch ----


DIES = None


class Told:
    """A launcher whose children say what they are told to."""

    def __init__(self, *passes):
        self.passes, self.tasks, self.pid = list(passes), [], None

    def start(self, task, write_fd, scratch):
        self.tasks.append(task)
        messages = self.passes.pop(0)

        def say(task, send):
            for message in messages:
                send(message) if message is not DIES else os._exit(3)

        self.pid = fork_child(task, write_fd, scratch, say)
        return self.pid

    def wait(self):
        return os.waitpid(self.pid, 0)[1]

    def close(self):
        pass


def test_stacks_that_the_step_never_calls_are_told():
    told_again = dataclasses.replace(PROGRAM, untouched=("tower.*",))
    launcher = Told([PROGRAM, Observed(event=compiled()), told_again, RAN], [RAN], [RAN])
    seen = []
    report = run(OPTIONS, Runner(ORIGIN, launcher, seen.append))
    assert [task.mode for task in launcher.tasks] == ["auto", "reference", "numerics"]
    assert "calls no block of tower.*" in report.undetermined[-1]
    assert (report.verdict, len(report.compiles)) == ("viable", 1)
    assert [b.fullgraph for b in report.blocks] == [True, True]
    assert seen[0].phase == "start"


def test_what_only_uneven_routing_compiles_counts():
    """An expert with a single token is one more compile of the code that the balanced routing compiled once."""
    program = dataclasses.replace(PROGRAM, weightless=True)
    planted = (Assumption(what="planted", meaning="m"), Assumption(what="read", meaning="r"))
    result = dataclasses.replace(RAN, undetermined=planted)
    single = dataclasses.replace(compiled(1), step=2)
    launcher = Told(
        [program, Observed(event=compiled()), result],
        [program, Observed(event=compiled()), Observed(event=single), result],
    )
    report = run(OPTIONS.with_(verify=False), Runner(ORIGIN, launcher))
    assert [task.options.compile.routing for task in launcher.tasks] == ["balanced", "idle_and_single"]
    assert [(c["step"], c.get("routing")) for c in report.compiles] == [(1, None), (2, "uneven")]
    assert (report.forecast["compiles"], report.forecast["recompiles"]) == (2, 1)
    assert [b.recompiles for b in report.blocks] == [1, 0]


def test_a_pass_that_dies_leaves_no_conclusion():
    launcher = Told([PROGRAM, Observed(event=compiled()), DIES], [PROGRAM, DIES])
    report = run(OPTIONS, Runner(ORIGIN, launcher))
    assert (report.verdict, len(report.compiles), report.exit_code()) == ("error", 1, 3)
    assert report.undetermined[0] == "the collect pass did not end: the pass ended early (exit code 3)"
    assert [task.mode for task in launcher.tasks] == ["auto", "fullgraph"]


def test_a_failure_of_the_program_itself_is_refused():
    launcher = Told([PROGRAM, RAISED, RAN], [PROGRAM, RAISED, RAN])
    with pytest.raises(InputError, match=r"fails without torch\.compile too"):
        run(OPTIONS, Runner(ORIGIN, launcher))
    assert [task.mode for task in launcher.tasks] == ["auto", "eager"]


@pytest.mark.parametrize("events, counted", [([Observed(event=compiled())], False), ([], True)])
def test_graphs_of_a_backend_that_is_not_counted_are_unknown(events, counted):
    """A subject that compiles itself with torch.compile(block): the runs of its graphs are not seen, its compiles are."""
    program = dataclasses.replace(PROGRAM, wrap=True, weightless=True)
    launcher = Told([program, *events, Result(graphs={}, fullgraph={}, calls={})])
    report = run(OPTIONS.with_(verify=False), Runner(ORIGIN, launcher))
    assert [(b.graphs, b.graphs_counted) for b in report.blocks] == [(0, counted)] * 2
    [group] = wording.block_groups(report.to_dict()["blocks"])
    assert group.graphs == (0 if counted else None)
    assert wording.verdict_facts(report.to_dict()).startswith("2 blocks, fullgraph unknown, ")


def test_a_setting_that_the_program_takes_back_proves_nothing():
    name = "torch._functorch.config.activation_memory_budget"
    changed = OPTIONS.with_(torch_config={name: 1.0})
    assert _undone(changed, Numerics(ok=False, config={name: 0.0}))
    assert not _undone(changed, Numerics(ok=False))
    assert not _undone(OPTIONS, Numerics(ok=False, config={name: 0.0}))
