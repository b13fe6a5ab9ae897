"""Proving remedies: which changes can be made, and what counts as proved."""

from __future__ import annotations

import dataclasses
import inspect
import threading

import pytest
import torch

from cftdiag.check import side_by_side
from cftdiag.check.changes import apply_change, edit_of
from cftdiag.check.outcome import Compile, Outcome, compiled, harm, removed
from cftdiag.check.proof_steps import ProofSteps
from cftdiag.check.proofs import Prover
from cftdiag.check.side_by_side import try_ahead
from cftdiag.details import CompileDetail
from cftdiag.errors import InputError
from cftdiag.events import Code, Event
from cftdiag.findings import Finding, Remedy, Where, covers
from cftdiag.options import CheckOptions
from cftdiag.report import advice
from cftdiag.subject import Origin

OPTIONS = CheckOptions(model="x")
DYNAMIC = Remedy(summary="dynamic", change={"dynamic": True}, applicability="safe")
MARK = Remedy(summary="mark", change={"mark_dynamic": {"x": [1]}}, applicability="safe")


def run(*steps, findings=(), region="forward", block="layers.0", **more):
    """An outcome that compiles ``region`` at these steps."""
    rows = tuple(Compile(step=step, region=region, block=block, again=i > 0) for i, step in enumerate(steps))
    more = {"ran": frozenset({"layers.0", "layers.1"}), "trained": frozenset({"w"}), **more}
    return Outcome(findings=tuple(findings), compiled=rows, **more)


def recompile(*steps, cause="seq_len", severity="warning", remedies=()):
    return Finding(
        kind="recompile",
        cause=cause,
        severity=severity,
        blocks=("layers.*",),
        count=len(steps),
        steps=steps,
        remedies=tuple(remedies),
    )


def graph_break(line=3, cause="tensor.item", severity="error", remedies=()):
    where = Where(file="m.py", line=line)
    return Finding(kind="graph_break", cause=cause, severity=severity, where=where, remedies=tuple(remedies))


def prove(findings, outcomes, before, *, compare=lambda options: None, **more):
    """``outcomes`` by the name of the field that a change sets."""
    runs = []

    def made(options):
        names = tuple(n for n in ("dynamic", "mark_dynamic") if options.flat()[n] != OPTIONS.flat()[n])
        runs.append(names)
        return outcomes[names if len(names) > 1 else names[0]]

    more = {"config_subject": False, "wrap": False, **more}
    prover = Prover(OPTIONS, before, made, compare=compare, **more)
    return prover, prover.prove(findings), runs


# ---- changes ----


@pytest.mark.parametrize(
    "change, field, value, edit",
    [
        ({"dynamic": True}, "dynamic", "true", "block.compile(dynamic=True)"),
        ({"dynamic": None}, "dynamic", "auto", "block.compile(dynamic=None)"),
        ({"dynamic": "auto"}, "dynamic", "auto", "block.compile(dynamic=None)"),
        ({"pad_to_multiple_of": "8"}, "pad_to_multiple_of", 8, "--pad-to-multiple-of 8"),
        ({"compile_kwargs": {"fullgraph": True}}, "fullgraph", True, "block.compile(fullgraph=True)"),
        (
            {"compile_kwargs": {"recompile_limit": 64}},
            "compile_kwargs",
            {"recompile_limit": 64},
            "block.compile(recompile_limit=64)",
        ),
        (
            {"torch._dynamo.config.capture_scalar_outputs": True},
            "torch_config",
            {"torch._dynamo.config.capture_scalar_outputs": True},
            "torch._dynamo.config.capture_scalar_outputs = True",
        ),
        (
            {"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "L['x']"}},
            "torch_config",
            {"torch.compiler.config.dynamic_sources": "L['x']"},
            "export TORCH_COMPILE_DYNAMIC_SOURCES=\"L['x']\"",
        ),
        ({"mark_dynamic": {"x": ["1"]}}, "mark_dynamic", {"x": [1]}, "torch._dynamo.mark_dynamic(x, 1)"),
        (
            {"model_config": {"use_cache": False}},
            "model_config",
            {"use_cache": False},
            "model.config.use_cache = False",
        ),
        (
            {"torch._dynamo.config.ignore_logging_functions": "logging.Logger.warning"},
            "torch_config",
            {"torch._dynamo.config.ignore_logging_functions": "logging.Logger.warning"},
            "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.warning)",
        ),
        ({"drop_last": True}, "drop_last", True, "DataLoader(..., drop_last=True)"),
    ],
)
def test_a_change_reaches_the_options_and_can_be_written_down(change, field, value, edit):
    changed = apply_change(OPTIONS, change, config_subject=False)
    assert changed is not None and changed.flat()[field] == value
    assert edit_of(change) == edit


@pytest.mark.parametrize("change", [{"attn": "sdpa"}, {"flash_varlen": True}])
def test_a_built_model_takes_no_other_attention(change):
    assert apply_change(OPTIONS, change, config_subject=False) is None
    assert apply_change(OPTIONS, change, config_subject=True) is not None


def test_changes_add_up():
    once = apply_change(OPTIONS, {"mark_dynamic": {"x": [1]}}, config_subject=False)
    twice = apply_change(once, {"mark_dynamic": {"y": [0]}}, config_subject=False)
    assert twice.patch.mark_dynamic == {"x": [1], "y": [0]}


# ---- what counts as proved ----


@pytest.mark.parametrize(
    "after, proved",
    [
        (run(1), True),
        (run(1, 3), False),
        (run(1, 3, findings=[recompile(3, cause="size_0_1")]), False),
        (run(1, findings=[recompile(2, cause="batch_dim")]), True),
        (run(1, 2), False),
        (run(1, 1), False),
        (run(ended=False), False),
        (run(), False),
        (run(1, ran=frozenset()), False),
        (run(1, ran=frozenset({"layers.0"})), False),
        (run(1, trained=frozenset()), False),
        (run(1, findings=[graph_break(severity="warning")]), False),
        (run(1, findings=[graph_break(severity="info")]), True),
    ],
    ids=[
        "the step no longer compiles",
        "the step still compiles",
        "the same step under another name",
        "a name that no compile stands for",
        "another step compiles instead",
        "an earlier step compiles more",
        "did not end",
        "nothing compiled",
        "nothing ran compiled",
        "one block ran eagerly",
        "a parameter gets no gradient",
        "a break appears",
        "something less grave appears",
    ],
)
def test_a_recompile_is_removed_when_its_step_compiles_no_more(after, proved):
    finding = recompile(3)
    if after.compiled == ():
        after = dataclasses.replace(after, ran=frozenset())
    assert removed(finding, run(1, 3), after) is proved


def test_blocks_of_one_class_share_their_compiles():
    # the recompile of step 3 is met first by another block: it is still the same code
    after = run(1, 3)
    other = dataclasses.replace(after.compiled[1], block="layers.1")
    assert not removed(
        recompile(3), run(1, 3), dataclasses.replace(after, compiled=(after.compiled[0], other))
    )
    # another code's compile of that step is not this finding's
    loss = Compile(step=3, region="loss", block="<loss>", again=True)
    before = dataclasses.replace(run(1, 3), compiled=(*run(1, 3).compiled, loss))
    assert removed(recompile(3), before, dataclasses.replace(run(1), compiled=(*run(1).compiled, loss)))


@pytest.mark.parametrize(
    "after, proved",
    [
        (run(1), True),
        (run(1, findings=[graph_break(3, cause="data_dependent_branch")]), False),
        (run(1, findings=[graph_break(5)]), False),
        (run(1, 2), False),
    ],
    ids=["gone", "renamed at its line", "the next one behind it", "compiles more"],
)
def test_a_break_is_removed_when_its_line_breaks_no_more(after, proved):
    finding = graph_break(3)
    assert removed(finding, run(1, findings=[finding]), after) is proved


def test_a_limit_keeps_compiles_away_that_a_mended_run_makes():
    finding = Finding(kind="limit_hit", cause="seq_len", severity="error", steps=(3,))
    before = run(1, 2, findings=[finding])
    assert removed(finding, before, run(1, 2, 3, 4))
    assert not removed(finding, before, run(1, 2, 2, 3))


def test_what_harms_is_said():
    assert harm(recompile(3), run(1, 3), run(1, 2)) == "step 2 compiles more"
    assert harm(recompile(3), run(1, 3), run(1, ended=False)) == "the step did not end"
    assert harm(recompile(3), run(1, 3), run(1)) is None


def test_only_graphs_that_came_out_of_forwards_count():
    code = Code(qualname="Block.forward", file="m.py", line=4)

    def event(status="ok", region="forward", graphs=1, **more):
        return Event(
            kind="compile",
            time=0.0,
            step=1,
            region=region,
            detail=CompileDetail(status=status, graphs=graphs),
            code=code,
            **more,
        )

    between_two_breaks = event(graphs=0)
    rows = compiled(
        [event(), event("failed"), event(region="backward"), between_two_breaks, event(block="layers.1")]
    )
    assert [(c.region, c.block, c.again) for c in rows] == [
        ("m.py:4 Block.forward", None, False),
        ("m.py:4 Block.forward", "layers.1", True),
    ]


# ---- the prover ----


def test_a_remedy_that_helps_says_before_and_after():
    _, [after], _ = prove([recompile(3, remedies=[DYNAMIC])], {"dynamic": run(1)}, run(1, 3))
    [remedy] = after.remedies
    assert remedy.verified is True and remedy.edit == "block.compile(dynamic=True)"
    assert remedy.before == {"count": 1, "compiles": 2} and remedy.after == {"count": 0, "compiles": 1}


def test_a_remedy_that_does_not_help_is_kept_and_says_so():
    words = Remedy(summary="words")
    _, [after], _ = prove([recompile(3, remedies=[DYNAMIC, words])], {"dynamic": run(1, 3)}, run(1, 3))
    assert [(r.summary, r.verified) for r in after.remedies] == [("words", None), ("dynamic", False)]


def test_fewer_compiles_rank_first():
    finding = recompile(3, remedies=[DYNAMIC, MARK])
    before = run(1, 3, 4)
    outcomes = {"dynamic": run(1, 4), "mark_dynamic": run(1)}
    prover, [after], _ = prove([finding], outcomes, before)
    assert [(r.summary, r.verified) for r in after.remedies] == [("mark", True), ("dynamic", True)]
    assert prover.before is before


def test_a_step_of_diagnosis_is_never_tried_and_comes_last():
    diagnosis = Remedy(summary="backend eager", change={"dynamic": True}, applicability="diagnosis")
    _, [after], runs = prove(
        [recompile(3, remedies=[diagnosis, MARK])], {"mark_dynamic": run(1, 3)}, run(1, 3)
    )
    assert [(r.summary, r.verified) for r in after.remedies] == [("mark", False), ("backend eager", None)]
    assert runs == [("mark_dynamic",)]


def test_a_proved_unsafe_remedy_never_leads():
    unsafe = dataclasses.replace(DYNAMIC, summary="unsafe", unsafe=True)
    words = Remedy(summary="words")
    _, [after], _ = prove([recompile(3, remedies=[unsafe, words])], {"dynamic": run(1)}, run(1, 3))
    assert [(r.summary, r.verified) for r in after.remedies] == [("words", None), ("unsafe", True)]


def test_a_proved_remedy_is_credited_to_every_finding_that_it_removes():
    findings = [
        recompile(3, remedies=[DYNAMIC]),
        recompile(4, cause="batch_dim"),
        recompile(5, cause="stride"),
    ]
    _, after, runs = prove(findings, {"dynamic": run(1, 5)}, run(1, 3, 4, 5))
    assert [[r.verified for r in f.remedies] for f in after] == [[True], [True], []]
    assert runs == [("dynamic",)]


def test_info_is_left_alone():
    finding = recompile(3, severity="info", remedies=[DYNAMIC])
    _, [after], runs = prove([finding], {}, run(1, 3))
    assert after == finding and runs == []


@pytest.mark.parametrize("equal, verified", [(True, True), (False, False), (None, True)])
def test_numbers_that_differ_from_eager_prove_nothing(equal, verified):
    _, [after], _ = prove(
        [recompile(3, remedies=[DYNAMIC])], {"dynamic": run(1)}, run(1, 3), compare=lambda options: equal
    )
    assert after.remedies[0].verified is verified


@pytest.mark.parametrize("equal, verified", [(True, True), (False, False), (None, None)])
def test_wrong_numbers_are_mended_only_where_they_were_compared(equal, verified):
    wrong = Finding(kind="numerics", cause="silent_wrong_numerics", severity="error", remedies=(DYNAMIC,))
    _, [after], _ = prove(
        [wrong], {"dynamic": run(1)}, run(1, findings=[wrong]), compare=lambda options: equal
    )
    assert after.remedies[0].verified is verified


def test_wrong_code_is_mended_where_its_pattern_is_gone():
    """It is seen in the generated code of a target, where nothing runs that could be compared."""
    wrong = Finding(kind="numerics", cause="known_wrong_code", severity="error", remedies=(DYNAMIC,))
    _, [after], _ = prove(
        [wrong], {"dynamic": run(1)}, run(1, findings=[wrong]), compare=lambda options: None
    )
    assert after.remedies[0].verified is True


def test_what_the_baseline_does_not_meet_is_left_unproved():
    _, [after], runs = prove([recompile(3, remedies=[DYNAMIC])], {}, run(1))
    assert after.remedies == (DYNAMIC,) and runs == []


def test_an_unknown_change_is_left_unproved():
    remedy = Remedy(summary="s", change={"prayer": True})
    _, [after], _ = prove([recompile(3, remedies=[remedy])], {}, run(1, 3))
    assert after.remedies == (remedy,)


def test_the_budget_is_kept_and_what_is_left_is_counted():
    options = CheckOptions(model="x", verify_budget=-1.0)
    prover = Prover(options, run(1, 3), lambda o: pytest.fail("was run"), config_subject=False, wrap=False)
    [after] = prover.prove([recompile(3, remedies=[DYNAMIC])])
    assert prover.left == 1 and after.remedies[0].verified is None


def test_a_run_gets_no_more_time_than_is_left_and_one_that_the_budget_stops_proves_nothing(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("cftdiag.check.proofs.time.monotonic", lambda: now[0])
    limits = []

    def until_stopped(options):
        limits.append(options.budget.timeout)
        now[0] += options.budget.timeout
        return run(1, ended=False)

    options = CheckOptions(model="x", verify_budget=20.0, timeout=15.0)
    prover = Prover(options, run(1, 3), until_stopped, config_subject=False, wrap=False)
    [after] = prover.prove([recompile(3, remedies=[DYNAMIC, MARK])])
    assert limits == [15.0, 5.0] and prover.left == 1
    assert [(r.verified, r.why_not) for r in after.remedies] == [
        (None, None),
        (False, "the step did not end"),
    ]


def test_numbers_that_no_time_was_left_to_compare_leave_a_remedy_unproved():
    def compare(options):
        prover.deadline = 0.0

    prover = Prover(OPTIONS, run(1, 3), lambda o: run(1), config_subject=False, wrap=False, compare=compare)
    [after] = prover.prove([recompile(3, remedies=[DYNAMIC])])
    assert after.remedies == (DYNAMIC,) and prover.left == 1


@pytest.mark.parametrize(
    "after, why",
    [
        (run(1, 3), "step 3 still compiles"),
        (run(1, 2), "step 2 compiles more"),
        (run(1, findings=[graph_break()]), "tensor.item appears"),
        (run(1, ended=False), "the step did not end"),
        (run(1, trained=frozenset()), "other parameters get gradients"),
    ],
)
def test_a_remedy_that_does_not_help_says_why(after, why):
    _, [finding], _ = prove([recompile(3, remedies=[DYNAMIC])], {"dynamic": after}, run(1, 3))
    assert finding.remedies[0].why_not == why
    mark = advice.mark(dataclasses.asdict(finding.remedies[0]))
    assert mark.startswith(f"tried, does not help: {why}")


def test_a_change_that_this_torch_lacks_stays_unproved():
    def refuse(options):
        raise InputError("this torch has no setting")

    prover = Prover(OPTIONS, run(1, 3), refuse, config_subject=False, wrap=False)
    [after] = prover.prove([recompile(3, remedies=[DYNAMIC])])
    assert after.remedies[0].verified is None


def test_an_argument_that_compile_lacks_is_refused_before_anything_is_built():
    from cftdiag.passes.prepare import prepare

    known = {"isolate_recompiles", "recompile_limit"} & set(inspect.signature(torch.compile).parameters)
    options = OPTIONS.with_(compile_kwargs={**dict.fromkeys(known, 1), "prayers": 3})
    with pytest.raises(InputError, match="compile of this torch has no prayers"):
        prepare(Origin(type="file", name="x", path="nowhere.py"), options, None)


# ---- together ----


def both(dynamic, mark, together, before):
    findings = [recompile(3, remedies=[DYNAMIC]), recompile(4, cause="batch_dim", remedies=[MARK])]
    outcomes = {"dynamic": dynamic, "mark_dynamic": mark, ("dynamic", "mark_dynamic"): together}
    prover, after, _ = prove(findings, outcomes, before)
    return prover.change_first(after)


def test_verified_remedies_are_proved_once_more_together():
    rows = both(run(1, 4), run(1, 3), run(1), run(1, 3, 4))
    assert [row["edit"] for row in rows] == [
        "block.compile(dynamic=True)",
        "torch._dynamo.mark_dynamic(x, 1)",
    ]
    assert [(row["before"], row["after"]) for row in rows] == [
        ({"compiles": 3, "findings": 2}, {"compiles": 2, "findings": 1}),
        ({"compiles": 2, "findings": 1}, {"compiles": 1, "findings": 0}),
    ]


def test_a_remedy_that_adds_nothing_to_the_first_is_not_advised_with_it():
    rows = both(run(1, 4), run(1), run(1), run(1, 3, 4))
    assert [row["edit"] for row in rows] == ["torch._dynamo.mark_dynamic(x, 1)"]
    assert both(run(1, 3, 4), run(1, 3, 4), run(1), run(1, 3, 4)) == ()


def test_remedies_that_spoil_one_another_are_not_advised_together():
    rows = both(run(1, 4), run(1, 3), run(1, 2, 4), run(1, 3, 4))
    assert [row["edit"] for row in rows] == ["block.compile(dynamic=True)"]


def test_a_step_that_another_block_meets_first_compiles_all_the_same():
    finding = dataclasses.replace(recompile(3), blocks=("layers.0",))
    after = dataclasses.replace(
        run(1), compiled=tuple(dataclasses.replace(c, block="layers.1") for c in run(1, 3).compiled)
    )
    assert after.count(finding) == 0 and after.count(finding, run(1, 3)) == 1
    assert not removed(finding, run(1, 3), after)


def test_a_pattern_of_blocks_means_one_part_of_a_name() -> None:
    assert covers("model.layers.*", "model.layers.3")
    assert not covers("model.layers.*", "model.layers.3.experts.1")
    assert covers("model.layers.*.experts.*", "model.layers.3.experts.1")
    assert covers("blocks.3", "blocks.3")
    assert not covers("blocks.3", "blocks.30")


# ---- side by side ----


def two_remedies():
    """A finding with two remedies of which the second helps, and what each gives."""
    finding = recompile(2, remedies=(DYNAMIC, MARK))
    outcomes = {"dynamic": run(1, 2, findings=(recompile(2),)), "mark_dynamic": run(1)}
    return finding, outcomes, run(1, 2, findings=(recompile(2),))


def named(outcomes, met):
    """A run that gives the outcome by the field that a change sets, after ``met()``."""

    def made(options):
        met()
        (name,) = (n for n in ("dynamic", "mark_dynamic") if options.flat()[n] != OPTIONS.flat()[n])
        return outcomes[name]

    return made


def test_two_changes_run_at_the_same_time_and_prove_what_they_prove_in_turn():
    finding, outcomes, before = two_remedies()
    _, (in_turn,), _ = prove([finding], outcomes, before)
    both = threading.Barrier(2, timeout=30)  # neither run ends before the other has begun
    prover = Prover(OPTIONS, before, named(outcomes, both.wait), config_subject=False, wrap=False)
    stopped = []
    try_ahead(prover, [finding], named(outcomes, both.wait), lambda options: None, lambda: stopped.append(1))
    prover.run = lambda options: pytest.fail("known by now")
    assert prover.prove([finding]) == (in_turn,) and stopped == [1]
    assert {r.verified for r in in_turn.remedies} == {True, False}


def test_what_the_second_interpreter_cannot_run_is_run_by_the_first():
    finding, outcomes, before = two_remedies()
    begun = threading.Event()

    def fails(options):
        begun.set()
        raise RuntimeError("no memory for one more")

    prover = Prover(OPTIONS, before, named(outcomes, begun.wait), config_subject=False, wrap=False)
    try_ahead(prover, [finding], fails, lambda options: None, lambda: None)
    _, expected, _ = prove([finding], outcomes, before)
    assert prover.prove([finding]) == expected


def test_ctrl_c_stops_what_runs_beside_and_keeps_what_is_known():
    finding, _, before = two_remedies()
    begun, stopped = threading.Event(), threading.Event()

    def interrupted(options):
        begun.wait(30)
        raise KeyboardInterrupt

    def beside(options):
        begun.set()
        assert stopped.wait(30)
        raise RuntimeError("its interpreter was stopped")

    prover = Prover(OPTIONS, before, interrupted, config_subject=False, wrap=False)
    steps = ProofSteps([finding], lambda event: None)
    steps.side_by_side(prover, [finding], beside, lambda options: None, stop=stopped.set)
    assert steps.interrupted and [r.verified for r in steps.prove(prover, [finding])[0].remedies] == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("seconds", "processors", "expected"), [(15, 2, True), (15, 1, False), (2, 2, False)]
)
def test_a_second_interpreter_is_started_where_it_pays(monkeypatch, seconds, processors, expected):
    finding, outcomes, before = two_remedies()
    monkeypatch.setattr(side_by_side, "processors", lambda: processors)
    prover = Prover(OPTIONS, before, named(outcomes, int), config_subject=False, wrap=False)
    assert side_by_side.worth(prover, [finding], seconds) is expected
    once = dataclasses.replace(finding, remedies=(DYNAMIC,))
    assert not side_by_side.worth(prover, [once, once], 60)


def test_a_recompile_that_goes_on_in_other_code_is_not_removed():
    """Without a break its block is compiled whole: the step still compiles, in a function that was not there before."""
    finding = recompile(3)
    before = run(1, 3, findings=(finding,), region="helper")
    after = run(1, 3, findings=(finding,), region="forward")
    assert not removed(finding, before, after)
    assert removed(finding, before, run(1, region="forward"))
