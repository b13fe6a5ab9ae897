"""The check verb around the driver: what it asks for, what it prints where, its exit code. The driver itself
is tested in integration.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from check_samples import BRANCH, LENGTH, VIABLE, viable

import cftdiag.check
from cftdiag.check import CheckOptions, CheckReport, EnvironmentUnfit, InputError
from cftdiag.check.report import BlockResult
from cftdiag.cli.main import run
from cftdiag.report import wording


def _report(*findings: Any, verdict: str = "viable") -> CheckReport:
    blocks = tuple(
        BlockResult(fqn=b["fqn"], cls=b["class"], kind=b["kind"], graphs=1, fullgraph=True)
        for b in VIABLE["blocks"]
    )
    kept = {key: VIABLE[key] for key in ("subject", "depth", "target", "environment", "forecast", "timing")}
    return CheckReport(
        verdict=verdict, blocks=blocks, findings=findings, compiles=tuple(VIABLE["compiles"]), **kept
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the driver was asked for; its answer is ``asked["answer"]``."""
    state: dict[str, Any] = {"answer": _report()}

    def run_check(options: CheckOptions, progress: Any) -> CheckReport:
        state["options"] = options
        if isinstance(state["answer"], BaseException):
            raise state["answer"]
        return state["answer"]

    # not setattr, which would import the driver to remember it
    monkeypatch.setitem(cftdiag.check.__dict__, "run_check", run_check)
    monkeypatch.delenv("TORCH_COMPILE_BACKEND", raising=False)
    return state


def test_without_options_the_driver_decides(asked: dict[str, Any]) -> None:
    assert run(["check", "--model", "Qwen3-4B"]) == 0
    assert asked["options"] == CheckOptions(model="Qwen3-4B")


def test_every_option_arrives(asked: dict[str, Any]) -> None:
    args = "--attn eager --dtype fp32 --dynamic auto --compile-scope model --compile-backend eager --batch-size 3 --lengths 7,9 --layers auto"
    args += " --blocks a.* --blocks b.* --depth trace --fast-forward never --timeout 9 --trust-remote-code"
    assert run(["check", "--model", "m", *args.split()]) == 0
    assert asked["options"] == CheckOptions(
        model="m",
        attn="eager",
        dtype="float32",
        dynamic="auto",
        compile_scope="model",
        compile_backend="eager",
        batch_size=3,
        lengths=(7, 9),
        layers="auto",
        blocks=("a.*", "b.*"),
        depth="trace",
        fast_forward="never",
        timeout=9.0,
        trust_remote_code=True,
    )


def test_the_backend_is_read_from_the_environment(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_BACKEND", "aot_eager")
    assert run(["check", "--model", "m"]) == 0
    assert asked["options"].compile.backend == "aot_eager"
    assert run(["check", "--model", "m", "--compile-backend", "eager"]) == 0
    assert asked["options"].compile.backend == "eager"


@pytest.mark.parametrize(
    ("findings", "verdict", "fail_on", "code"),
    [
        ((), "viable", "error", 0),
        ((LENGTH,), "viable_with_recompiles", "error", 0),
        ((LENGTH,), "viable_with_recompiles", "warning", 1),
        ((BRANCH,), "not_viable", "error", 1),
        ((BRANCH,), "not_viable", "never", 0),
        ((), "error", "never", 3),
    ],
)
def test_exit_codes(
    findings: tuple[Any, ...], verdict: str, fail_on: str, code: int, asked: dict[str, Any]
) -> None:
    asked["answer"] = _report(*findings, verdict=verdict)
    assert run(["check", "--model", "m", "--fail-on", fail_on]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("no such thing; do this"), 2), (EnvironmentUnfit("no fork; use Linux"), 3)],
)
def test_the_drivers_errors_are_one_line(
    error: Exception, code: int, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked["answer"] = error
    assert run(["check", "--model", "m"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {error}\n")


def test_an_interrupt_is_one_line_and_no_conclusion(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked["answer"] = KeyboardInterrupt()
    assert run(["check", "--model", "m"]) == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: interrupted, no conclusion\n")


def test_json_to_stdout_is_json_alone(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--model", "m", "--json", "-"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data.pop("asked") == {
        "arguments": ["check", "--model", "m", "--json", "-"],
        "directory": str(Path.cwd()),
    }
    assert data.pop("diffs") == {}
    assert data == viable()
    assert captured.err == ""


def test_json_to_a_file_comes_beside_the_report(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "check.json"
    assert run(["check", "--model", "m", "--json", str(target)]) == 0
    assert json.loads(target.read_text()).items() >= viable().items()
    shown = capsys.readouterr().out
    assert run(["report", str(target)]) == 0
    assert capsys.readouterr().out == shown


def test_quiet_prints_the_verdict_alone(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--model", "m", "-q"]) == 0
    assert capsys.readouterr().out == wording.verdict_line(viable()) + "\n"


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    assert run(["check", "--model", "m", "--json", str(tmp_path)]) == 2
    assert "options" not in asked


def test_a_baseline_lets_known_findings_pass_and_stops_new_ones(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = str(tmp_path / "known.json")
    asked["answer"] = _report(LENGTH, verdict="viable_with_recompiles")
    check = ["check", "--model", "m", "--fail-on", "warning"]
    assert run(check) == 1
    assert run([*check, "--write-baseline", known]) == 0
    assert f"wrote {known}: 1 known" in capsys.readouterr().err
    assert run([*check, "--baseline", known]) == 0
    assert "0 new findings, 1 known (baseline)" in capsys.readouterr().out
    asked["answer"] = _report(LENGTH, BRANCH, verdict="not_viable")
    assert run([*check, "--baseline", known, "--json", "-"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [bool(f.get("accepted")) for f in data["findings"]] == [True, False]
    asked["answer"] = _report(verdict="error")
    assert run([*check, "--write-baseline", known]) == 3
    assert "data_dependent_branch" not in Path(known).read_text() and "seq_len" in Path(known).read_text()


def test_a_baseline_that_is_none_is_refused_before_the_work(asked: dict[str, Any], tmp_path: Path) -> None:
    assert run(["check", "--model", "m", "--baseline", str(tmp_path / "none.json")]) == 2
    assert run(["check", "--model", "m", "--write-baseline", str(tmp_path)]) == 2
    assert "options" not in asked


def test_a_comment_in_the_checked_file_accepts_a_finding(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build():\n    branch()  # cftdiag: ignore[data_dependent_branch] once a run\n")
    finding = dataclasses.replace(BRANCH, where=dataclasses.replace(BRANCH.where, file=str(file), line=2))
    asked["answer"] = _report(finding, verdict="not_viable")
    monkeypatch.chdir(tmp_path)
    assert run(["check", "--model", "mine.py:build"]) == 0
    file.write_text("def build():\n    branch()\n")
    assert run(["check", "--model", "mine.py:build"]) == 1


@pytest.mark.parametrize("target", [[], ["--target", "cpu"]])
@pytest.mark.parametrize("wish", [["--compile-scope", "all"], ["--fit"]])
def test_gains_of_all_scopes_need_a_gpu(
    asked: dict[str, Any], capsys: Any, target: list[str], wish: list[str]
) -> None:
    assert run(["check", "--model", "Qwen3-4B", *wish, *target]) == 2
    assert "estimates for a GPU; name it with --target (a100" in capsys.readouterr().err
    assert "options" not in asked, "refused before anything ran"


def test_gains_stand_beside_the_check(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import cftdiag.payoff.job as job

    def fails(options: CheckOptions, **kwargs: Any) -> dict[str, Any]:
        assert (options.compile.scope, kwargs["target"]) == ("block", "h200")
        raise InputError("it is told for catalogue models")

    monkeypatch.setattr(job, "payoff", fails)
    args = ["check", "--model", "m", "--compile-scope", "all", "--target", "h200", "--json", "-"]
    assert run(args) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "viable" and "payoff" not in data
    assert data["undetermined"][-1] == (
        "what each compile scope gains is not known: it is told for catalogue models"
    )


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ([], "h200"),
        (["--depth", "joint"], None),
        (["--compile-backend", "aot_eager"], None),
        (["--target", "a100"], "a100"),
    ],
)
def test_the_gpu_that_is_here_is_the_target(
    arguments: list[str],
    target: str | None,
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("cftdiag.cli.check.present", lambda: "h200")
    assert run(["check", "--model", "x", *arguments]) == 0
    assert asked["options"].compile.target == target
    assert ("this machine's GPU, h200" in capsys.readouterr().err) == (not arguments)
