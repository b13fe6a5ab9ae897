"""Proving remedies: which changes can be made, and what counts as proved."""

from __future__ import annotations

import pytest

from cftdiag.check.proofs import Outcome, Prover, apply_change
from cftdiag.errors import InputError
from cftdiag.findings import Finding, Remedy
from cftdiag.options import CheckOptions

OPTIONS = CheckOptions(model="x")


def recompile(count=3, cause="seq_len", severity="warning", remedies=()):
    return Finding(kind="recompile", cause=cause, severity=severity, count=count, remedies=tuple(remedies))


def prove(finding, run, *, before=None, options=OPTIONS, wrap=False):
    before = before or Outcome(findings=(finding,), compiles=4, ended=True)
    prover = Prover(options, before, run, config_subject=False, wrap=wrap)
    return prover, prover.prove([finding])[0]


@pytest.mark.parametrize(
    "change, field, value",
    [
        ({"dynamic": True}, "dynamic", "true"),
        ({"dynamic": None}, "dynamic", "auto"),
        ({"dynamic": "auto"}, "dynamic", "auto"),
        ({"pad_to_multiple_of": "8"}, "pad_to_multiple_of", 8),
        ({"compile_kwargs": {"fullgraph": True}}, "fullgraph", True),
        ({"compile_kwargs": {"recompile_limit": 64}}, "compile_kwargs", {"recompile_limit": 64}),
        (
            {"torch._dynamo.config.capture_scalar_outputs": True},
            "torch_config",
            {"torch._dynamo.config.capture_scalar_outputs": True},
        ),
        (
            {"env": {"TORCH_COMPILE_DYNAMIC_SOURCES": "L['x']"}},
            "torch_config",
            {"torch.compiler.config.dynamic_sources": "L['x']"},
        ),
        ({"mark_dynamic": {"x": ["1"]}}, "mark_dynamic", {"x": [1]}),
    ],
)
def test_a_change_reaches_the_options(change, field, value):
    changed = apply_change(OPTIONS, change, config_subject=False)
    assert changed is not None and getattr(changed, field) == value


@pytest.mark.parametrize("change", [{"attn": "sdpa"}, {"flash_varlen": True}])
def test_a_built_model_takes_no_other_attention(change):
    assert apply_change(OPTIONS, change, config_subject=False) is None
    assert apply_change(OPTIONS, change, config_subject=True) is not None


def test_an_unknown_change_is_left_unproved():
    remedy = Remedy(summary="s", change={"prayer": True})
    _, after = prove(recompile(remedies=[remedy]), lambda options, finding: pytest.fail("was run"))
    assert after.remedies == (remedy,)


def test_a_remedy_that_helps_says_before_and_after():
    remedy = Remedy(summary="s", change={"dynamic": True})
    _, after = prove(
        recompile(remedies=[remedy]), lambda options, finding: Outcome(findings=(), compiles=1, ended=True)
    )
    assert after.remedies[0].verified is True
    assert after.remedies[0].before == {"count": 3, "compiles": 4} and after.remedies[0].after == {
        "count": 0,
        "compiles": 1,
    }


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(findings=(recompile(1),), compiles=2, ended=True),
        Outcome(findings=(), compiles=0, ended=False),
        Outcome(
            findings=(Finding(kind="graph_break", cause="tensor.item", severity="error"),),
            compiles=1,
            ended=True,
        ),
    ],
    ids=["still there", "did not end", "another error instead"],
)
def test_a_remedy_that_does_not_help_is_kept_and_says_so(outcome):
    first = Remedy(summary="first", change={"dynamic": True})
    words = Remedy(summary="words")
    _, after = prove(recompile(remedies=[first, words]), lambda options, finding: outcome)
    assert [(r.summary, r.verified) for r in after.remedies] == [("words", None), ("first", False)]


def test_a_proved_unsafe_remedy_never_leads():
    unsafe = Remedy(summary="unsafe", change={"dynamic": True}, unsafe=True)
    words = Remedy(summary="words")
    _, after = prove(
        recompile(remedies=[unsafe, words]),
        lambda options, finding: Outcome(findings=(), compiles=1, ended=True),
    )
    assert [(r.summary, r.verified) for r in after.remedies] == [("words", None), ("unsafe", True)]


def test_equal_changes_run_once_and_info_is_left_alone():
    runs = []

    def run(options, finding):
        runs.append(options)
        return Outcome(findings=(), compiles=1, ended=True)

    remedy = Remedy(summary="s", change={"dynamic": True})
    findings = [
        recompile(remedies=[remedy]),
        recompile(cause="batch_dim", remedies=[remedy]),
        recompile(cause="stride", severity="info", remedies=[remedy]),
    ]
    prover = Prover(
        OPTIONS,
        Outcome(findings=tuple(findings), compiles=4, ended=True),
        run,
        config_subject=False,
        wrap=False,
    )
    after = prover.prove(findings)
    assert len(runs) == 1
    assert [f.remedies[0].verified for f in after] == [True, True, None]


def test_the_budget_is_kept_and_what_is_left_is_counted():
    remedy = Remedy(summary="s", change={"dynamic": True})
    prover, after = prove(
        recompile(remedies=[remedy]),
        lambda o, f: pytest.fail("was run"),
        options=CheckOptions(model="x", verify_budget=-1.0),
    )
    assert prover.left == 1 and after.remedies[0].verified is None


def test_a_change_that_this_torch_lacks_stays_unproved():
    def run(options, finding):
        raise InputError("this torch has no setting")

    _, after = prove(recompile(remedies=[Remedy(summary="s", change={"torch._dynamo.config.gone": 1})]), run)
    assert after.remedies[0].verified is None
