"""What a test may expect of a check; the plugin around it, where no check runs."""

from __future__ import annotations

from typing import Any

import pytest
from check_samples import forecasted, no_conclusion, not_viable, recompiles, viable

from cftdiag.gate import Expectations

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "cftdiag.pytest_plugin")


@pytest.mark.parametrize(
    ("expected", "make", "unmet"),
    [
        ({}, viable, []),
        ({}, recompiles, []),
        ({"fail_on": "warning"}, recompiles, ["findings at or above warning: recompile seq_len"]),
        ({}, not_viable, ["findings at or above error: graph_break data_dependent_branch"]),
        ({"fail_on": "never"}, not_viable, []),
        ({"fail_on": "never"}, no_conclusion, ["no conclusion: the fullgraph pass did not end: stopped after 600 s"]),
        ({"fail_on": "never", "fullgraph": True}, not_viable, ["not captured whole: model.layers.0, model.layers.1, model.layers.2 and 33 more"]),
        ({"fullgraph": True}, recompiles, []),
        ({"fail_on": "never", "max_graph_breaks": 35}, not_viable, ["36 graph breaks, at most 35 expected"]),
        ({"max_recompiles": 0}, forecasted, ["1 recompiles, at most 0 expected"]),
        ({"max_recompiles": 1}, forecasted, []),
        ({"max_compiles": 0}, viable, ["1 compiles, at most 0 expected"]),
        ({"max_compile_seconds": 3}, viable, ["3.214 seconds of compiling, at most 3 expected"]),
        ({"max_compile_seconds": 3.5}, viable, []),
    ],
)  # fmt: skip
def test_expectations(expected: dict[str, Any], make: Any, unmet: list[str]) -> None:
    assert Expectations(**expected).unmet(make()) == unmet


def test_a_block_that_runs_no_graph_is_not_captured_whole() -> None:
    data = viable()
    data["blocks"][4].update(graphs=0, fullgraph=None)
    assert Expectations(fullgraph=True).unmet(data) == ["not captured whole: model.layers.4"]


def test_coverage_is_the_scripts_own_or_measured() -> None:
    expected = Expectations(coverage=0.9)
    assert expected.unmet(viable(), coverage=0.95) == []
    assert "80.0% of the parameters" in expected.unmet(viable(), coverage=0.8)[0]
    assert "drop it here" in expected.unmet(viable())[0]
    assert expected.unmet(viable() | {"coverage": {"parameters": 0.5}}, coverage=1.0) != []


def test_what_was_accepted_fails_nothing() -> None:
    data = not_viable()
    data["findings"][0]["accepted"] = {"by": "baseline", "reason": None}
    assert Expectations().unmet(data) == []


@pytest.mark.parametrize("wrong", [{"fail_on": "errors"}, {"coverage": 95}])
def test_a_wrong_expectation_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        Expectations(**wrong)


# ---- the plugin, where it runs no check ----


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project; its pytest loads no plugin but what it is given."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cftdiag(no_such_option=1)
        def test_marked():
            return "Qwen3-4B"

        @pytest.mark.cftdiag(lengths=[5])
        def test_live():
            return object(), [{}]

        def test_with_the_fixture(cftdiag_check):
            cftdiag_check("no-such-model-anywhere")

        @pytest.mark.cftdiag(baseline="none.json")
        def test_without_its_baseline():
            return "Qwen3-4B"

        def test_other():
            pass
        """
    )
    return pytester


def test_a_mistake_is_one_line_and_no_traceback(inner: pytest.Pytester) -> None:
    result = inner.runpytest_inprocess(*PLUGIN, "--strict-markers")
    result.assert_outcomes(passed=1, failed=4)
    text = result.stdout.str()
    assert "an unknown option" in text and "no_such_option" in text
    assert "take the lengths of the mark by the fixture cftdiag_lengths" in text
    assert "no-such-model-anywhere" in text and "cannot read the baseline" in text
    assert "Traceback" not in text and "def test_marked" not in text


def test_inert_without_the_flag_where_the_project_wants_that(inner: pytest.Pytester) -> None:
    inner.makeini("[pytest]\ncftdiag_run = flag\n")
    inner.runpytest_inprocess(*PLUGIN, "-rs").assert_outcomes(passed=1, skipped=4)
    inner.runpytest_inprocess(*PLUGIN, "--cftdiag").assert_outcomes(passed=1, failed=4)
    inner.makeini("[pytest]\ncftdiag_run = sometimes\n")
    result = inner.runpytest_inprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*cftdiag_run is 'sometimes'; write 'always' or 'flag'*")


def test_the_plugin_brings_no_torch_into_a_session(inner: pytest.Pytester) -> None:
    inner.makeini("[pytest]\ncftdiag_run = flag\n")
    inner.makeconftest(
        "import sys\ndef pytest_sessionfinish():\n    assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    result = inner.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1, skipped=4)
    assert result.ret == 0
