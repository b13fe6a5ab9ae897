"""`cftdiag diff`: equal runs differ in nothing, and every way in which one can get worse is told."""

from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path
from typing import Any

import monitor_samples
import pytest
from check_samples import forecasted, no_conclusion, not_viable, recompiles, viable

from cftdiag import compare
from cftdiag.cli.main import run
from cftdiag.compare.fingerprint import guard_key
from cftdiag.compare.normal import plain
from cftdiag.monitor import report as report_run
from cftdiag.report import diff as view
from tests.recordings import corpus

#: A check of each tenth case of the corpus: breaks, recompiles, limits and errors as they really come.
RECORDED = corpus.recordings()[::10]


def worse(before: dict, after: dict, floor: str = "info") -> set[tuple[str, str]]:
    return {(c.section, c.field or c.what) for c in compare.diff(before, after).worse(floor)}


def elsewhere(value: Any) -> Any:
    """The same document from another machine and day: other folders, lines, addresses, ids and seconds."""
    if isinstance(value, dict):
        moved = {key: elsewhere(v) for key, v in value.items()}
        if isinstance(moved.get("line"), int):
            moved["line"] += 7
        if isinstance(moved.get("seconds"), float):
            moved["seconds"] *= 1.7
        return moved
    if isinstance(value, list):
        return [elsewhere(v) for v in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\b0x[0-9a-f]+", "0x7fdeadbeef00", value)
    text = re.sub(r"\b\d{12,}\b", "140737488355328", text)
    text = re.sub(r"\.py:(\d+)", lambda m: f".py:{int(m[1]) + 7}", text)
    text = re.sub(r"<packages>", "/opt/venv/lib/python3.12/site-packages", text)
    return text.replace("<repository>/", "/builds/team/")


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_two_equal_checks_differ_in_nothing(file: Path) -> None:
    check = corpus.replay(file).to_dict()
    found = compare.diff(check, elsewhere(json.loads(json.dumps(check))))
    assert found.changes == () and found.exit_code("warning") == (3 if check["verdict"] == "error" else 0)


def test_a_recompile_that_changes_its_cause_is_not_one_more() -> None:
    before = recompiles()
    first = before["findings"][0] | {"kind": "recompile", "cause": "seq_len", "count": 1, "guard": "a"}
    other = first | {"cause": "shape_divisibility", "guard": "b", "where": {"file": "b.py", "line": 1}}
    before["findings"] = [first, other]
    after = before | {"findings": [first | {"count": 2}]}
    assert worse(before, after) == set()
    assert worse(before, before | {"findings": [first | {"count": 3}]}) == {("findings", "count")}


def test_equal_documents_of_every_kind_are_the_same(tmp_path: Path) -> None:
    first, second = (_run(tmp_path / name, recompiled=True) for name in ("a", "b"))
    for a, b in ((forecasted(), forecasted()), (first, second), (_kernels(), _kernels()), (_plan(), _plan())):
        assert compare.diff(a, b).to_dict()["same"] is True


def test_a_break_is_worse_and_its_end_is_better() -> None:
    told = worse(viable(), not_viable(), "error")
    assert {("verdict", "verdict"), ("findings", "graph_break data_dependent_branch")} <= told
    assert {("blocks", "fullgraph"), ("blocks", "graph_breaks")} <= told
    back = compare.diff(not_viable(), viable())
    assert back.worse() == () and back.exit_code("warning") == 0
    assert {c.effect for c in back.changes if c.section in ("findings", "blocks", "verdict")} == {"better"}


def test_a_recompile_fails_at_warning_alone() -> None:
    found = compare.diff(viable(), recompiles())
    assert (found.exit_code("error"), found.exit_code("warning"), found.exit_code("never")) == (0, 1, 0)
    assert ("findings", "recompile seq_len") in worse(viable(), recompiles(), "warning")


def test_the_same_finding_that_is_worse() -> None:
    after = recompiles()
    after["findings"][0].update(count=5, blocks=["model.layers.0", "model.layers.1", "model.layers.2"])
    assert worse(recompiles(), after) == {("findings", "count"), ("findings", "blocks")}
    after["findings"][0]["severity"] = "error"
    assert ("findings", "severity") in worse(recompiles(), after, "error")


def test_a_finding_with_another_guard_or_name_is_not_a_new_one() -> None:
    after = recompiles()
    after["findings"][0].update(guard="2560*x.size()[1] < 5242880", cause="inductor_fusion_threshold")
    found = compare.diff(recompiles(), after)
    assert {c.field for c in found.changes} == {"cause", "guard"}
    assert found.worse() == ()


def test_without_a_conclusion() -> None:
    assert compare.diff(viable(), no_conclusion()).exit_code() == 1
    assert compare.diff(no_conclusion(), viable()).exit_code("warning") == 0
    assert compare.diff(no_conclusion(), no_conclusion()).exit_code("never") == 3


def test_other_lengths_make_no_regression_of_the_compiles() -> None:
    after = viable()
    after["subject"]["lengths"] = [512]
    after["compiles"] = after["compiles"] * 3
    found = compare.diff(viable(), after)
    assert found.worse() == ()
    assert {c.section for c in found.changes} == {"conditions", "compiles"}
    after["subject"]["lengths"] = viable()["subject"]["lengths"]
    assert ("compiles", "count") in worse(viable(), after, "warning")


def test_a_block_that_runs_no_graph_any_more() -> None:
    after = viable()
    after["blocks"][3]["graphs"] = 0
    (change,) = compare.diff(viable(), after).changes
    assert (change.effect, change.severity, change.blocks) == ("worse", "error", ("model.layers.3",))
    after["blocks"].pop(3)
    (change,) = compare.diff(viable(), after).changes
    assert (change.effect, change.severity, change.after) == ("worse", "warning", None)


def test_a_forecast_that_changed() -> None:
    after = forecasted()
    after["forecast"].update(compiles=3, limit_hit=True)
    after["forecast"]["warmed"]["steps"] = [{"step": 7}]
    after["forecast"]["regimes"][1]["bounds"] = ["B >= 2", "B*S > 9000"]
    after["forecast"]["steps"].append({**after["forecast"]["steps"][1], "step": 9})
    told = worse(forecasted(), after)
    assert {
        ("forecast", "compiles"),
        ("forecast", "recompile limit hit"),
        ("forecast", "compiles left after warming"),
        ("forecast", "compile at step 9, 4 x 387"),
    } <= told
    regions = [c for c in compare.diff(forecasted(), after).changes if c.section == "regimes"]
    assert [(c.before is None, c.after is None) for c in regions] == [(False, True), (True, False)]
    after["forecast"]["data"]["samples"] = 61  # another data file tells nothing of the compiles
    assert ("forecast", "compiles") not in worse(forecasted(), after)


def test_less_that_is_compiled_and_gained() -> None:
    before, after = viable(), viable()
    before["coverage"], after["coverage"] = (
        {"parameters": 0.97, "flops": 0.91},
        {"parameters": 0.97, "flops": 0.6},
    )
    before["payoff"] = {
        "target": "h200",
        "scopes": [
            {"scope": "block", "gain": [1.2, 1.5], "compile_seconds": 5.0, "break_even_steps": [9, 12]}
        ],
        "memory": {"eager": {"peak": 10_000}, "compiled": {"peak": 8_000}},
    }
    after["payoff"] = copy.deepcopy(before["payoff"])
    after["payoff"]["scopes"][0] |= {
        "gain": [1.0, 1.2],
        "compile_seconds": 50.0,
        "break_even_steps": [90, 120],
    }
    after["payoff"]["memory"]["compiled"]["peak"] = 9_000
    assert worse(before, after, "warning") == {
        ("coverage", "flops"),
        ("payoff", "gain"),
        ("payoff", "peak bytes of a rank"),
    }
    after["payoff"]["target"] = "a100"  # of another device nothing is judged
    assert worse(before, after, "warning") == {("coverage", "flops")}


def test_seconds_are_told_and_judged_only_where_asked() -> None:
    after = viable()
    after["compiles"][0]["seconds"] = 12.5
    found = compare.diff(viable(), after)
    assert found.changes == () and found.figures[0].after == 12.5
    (change,) = compare.diff(viable(), after, max_slowdown=2).changes
    assert (change.section, change.what, change.effect) == ("seconds", "compile", "worse")
    assert compare.diff(viable(), after, max_slowdown=4).changes == ()


# ---- runs, kernels, plans ----


def _run(path: Path, *, recompiled: bool) -> dict[str, Any]:
    events = [monitor_samples.head(), monitor_samples.compiled(), monitor_samples.steps(1, [3.0, 0.5])]
    if recompiled:
        events += [
            monitor_samples.event("recompile", step=3),
            monitor_samples.compiled(step=3, compile_id="0/1"),
        ]
    return report_run(monitor_samples.write_run(path, {0: [*events, monitor_samples.end(3)]}))


def test_two_runs(tmp_path: Path) -> None:
    a, b = _run(tmp_path / "a", recompiled=False), _run(tmp_path / "b", recompiled=True)
    assert {("compiles", "recompile seq_len"), ("findings", "recompile seq_len")} <= worse(a, b, "warning")
    assert compare.diff(b, a).worse() == ()
    found = compare.diff(a, b)
    assert found.kind == "run" and "compile" in {f.name for f in found.figures}


def test_what_was_foreseen_with_what_came(tmp_path: Path) -> None:
    came = _run(tmp_path / "run", recompiled=True)
    found = compare.diff(viable(), came)
    assert found.kind == "check and run"
    assert ("findings", "recompile seq_len") in {(c.section, c.what) for c in found.worse("warning")}


def _kernels() -> dict[str, Any]:
    usage = {"registers": 32, "stack": 0, "static_shared": 0, "spill_stores": 0, "spill_loads": 0}
    kernel = {
        "name": "triton_per_fused_add_mul_3",
        "category": "persistent_reduction",
        "aten": ["aten.add", "aten.mul"],
        "lines": [{"file": "/a/m.py", "line": 3, "function": "forward", "code": "x + y"}],
        "read_bytes": 1000,
        "write_bytes": 500,
        "flops": 10,
        "roofline": {"microseconds": 2.0},
        "compiled": {"configurations": [{"settings": {"XBLOCK": 1}, "usage": usage, "shared": 64}]},
    }
    graph = {
        "compile_id": "0/0",
        "direction": "forward",
        "sizes": {"s27": 512},
        "peak_bytes": 9000,
        "kernels": [kernel],
        "externs": [{"op": "aten.mm", "bytes": 100, "roofline": None}],
    }
    return {
        "schema": "cftdiag.kernels/1",
        "model": "Qwen3-4B",
        "target": "h200",
        "predicted": True,
        "shapes": [{"batch_size": 1, "length": 512}],
        "environment": {"torch": "2.13.0"},
        "blocks": [{"kind": "Block", "graphs": [graph]}],
        "findings": [],
    }


def test_generated_code_that_got_worse() -> None:
    after = _kernels()
    after["environment"]["torch"] = "2.14.1"
    (graph,) = after["blocks"][0]["graphs"]
    (kernel,) = graph["kernels"]
    kernel["name"] = "triton_per_fused_add_mul_9"  # a number of this graph alone
    usage = kernel["compiled"]["configurations"][0]["usage"]
    usage.update(registers=64, stack=16, spill_stores=4)
    extra = copy.deepcopy(kernel) | {
        "name": "triton_poi_fused_cat_0",
        "aten": ["aten.cat"],
        "category": "pointwise",
    }
    graph["kernels"].append(extra)
    graph["externs"].append({"op": "aten.copy_", "bytes": 10, "roofline": None})
    found = compare.diff(_kernels(), after)
    told = {(c.what, c.field): (c.effect, c.severity) for c in found.changes if c.section == "kernels"}
    kernel_name = "triton_per_fused_add_mul in Block forward"
    assert told[kernel_name, "registers"] == ("worse", "info")
    assert told[kernel_name, "spill bytes"] == ("worse", "warning")
    assert told["graph of Block forward", "bytes moved"] == ("worse", "warning")
    assert told["graph of Block forward", "kernels"] == ("worse", "info")
    assert told["aten.copy_ in Block forward", "calls"] == ("other", "info")
    assert told["triton_poi_fused_cat in Block forward", ""] == ("other", "info")


def _plan() -> dict[str, Any]:
    shape = {"batch_size": 2, "length": 512, "variant": ""}
    return {
        "schema": "cftdiag.plan/1",
        "fingerprint": {"torch": "2.13.0", "transformers": "5.24.0", "config_sha": "0123456789abcdef", "attn": "sdpa"},
        "settings": [{"key": "torch._inductor.config.x", "value": False, "unsafe": False, "verified": True}],
        "regimes": [{"id": "r1", "bounds": ["B*S < 2048"], "representative": shape, "variants": [""]}],
        "forecast": [],
    }  # fmt: skip


def test_two_plans() -> None:
    after = _plan()
    after["fingerprint"]["torch"] = "2.14.1"
    after["settings"][0]["unsafe"] = True
    after["regimes"][0]["bounds"] = ["B*S < 4096"]
    after["forecast"] = [{"step": 4, "regime": "r1", "cause": "seq_len"}]
    found = compare.diff(_plan(), after)
    assert {c.section for c in found.changes} == {"environment", "settings", "regimes", "forecast"}
    assert {c.section for c in found.worse("warning")} == {"settings", "forecast"}


def test_documents_of_different_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="a check and a plan"):
        compare.diff(viable(), _plan())


# ---- normal forms ----


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<function f at 0x7f12>", "<function f at 0x7f99ab>"),
        ("___check_obj_id(x, 140234567890), type=<class 'm.C'>", "___check_obj_id(x, 99234567890), type=<class 'm.C'>"),
        ("4096*s27*s4 < 5242880", "4096*s0*s1 < 5242880"),
        ("torch_dynamo_resume_in_forward_at_41", "torch_dynamo_resume_in_forward_at_48"),
        ("met in /home/a/x/model.py:41", "met in /ci/model.py:50"),
        ("/v/lib/python3.11/site-packages/transformers/m.py:3", "/w/site-packages/transformers/m.py:4"),
    ],
)  # fmt: skip
def test_equal_texts(one: str, other: str) -> None:
    assert plain(one) == plain(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4096*s27*s4 < 5242880", "2560*s27*s4 < 5242880"),
        ("s0*s1 + s0", "s0*s1 + s1"),
        ("a/b", "a/c"),
        ("/x/site-packages/a/m.py", "/x/site-packages/b/m.py"),
    ],
)
def test_other_texts_stay_apart(one: str, other: str) -> None:
    assert plain(one) != plain(other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "tensor 'x' size mismatch at index 1. expected 512, actual 640",
            "tensor 'x' size mismatch at index 1. expected 5, actual 6",
            True,
        ),
        (
            "tensor 'x' size mismatch at index 1. expected 512, actual 640",
            "tensor 'x' size mismatch at index 0. expected 512, actual 640",
            False,
        ),
        ("L['self'].step == 3", "self.step == 4", True),
        ("L['self'].step == 3", "self.epoch == 3", False),
        ("(x.size()[1] % 8) == 0", "(x.size()[1] % 16) == 0", False),
    ],
)
def test_a_guard_is_what_it_tests(one: str, other: str, same: bool) -> None:
    assert (guard_key(one) == guard_key(other)) is same


def test_a_fingerprint_stays_where_lines_move_and_changes_where_code_does() -> None:
    finding = not_viable()["findings"][0]
    moved = copy.deepcopy(finding)
    moved.update(count=1, steps=[4], blocks=["x"], severity="warning")
    moved["where"].update(line=90, file="/elsewhere/model.py", code="  if   mask.all():")
    assert compare.fingerprint(moved) == compare.fingerprint(finding)
    for change in ({"code": "if mask.any():"}, {"function": "step"}, {"file": "/elsewhere/other.py"}):
        other = copy.deepcopy(finding)
        other["where"] |= change
        assert compare.fingerprint(other) != compare.fingerprint(finding)
    assert len(set(compare.fingerprints([finding, moved, finding]))) == 3


# ---- the verb ----


def _saved(tmp_path: Path, **documents: dict) -> list[str]:
    paths = []
    for name, data in documents.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(data))
        paths.append(str(path))
    return paths


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = _saved(tmp_path, a=viable(), b=not_viable())
    assert run(["diff", a, a, "-q"]) == 0
    assert capsys.readouterr().out == "no change\n"
    assert run(["diff", a, b]) == 1
    shown = capsys.readouterr().out
    assert "graph_break data_dependent_branch" in shown and "if mask.all():" in shown
    assert "decide it on the host and pass a bool" in shown
    assert run(["diff", a, b, "--fail-on", "never", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "cftdiag.diff/1" and data["regressions"]["error"] > 0
    assert run(["diff", a, b, "--markdown", "-"]) == 1
    assert "| worse error | verdict | viable -> not\\_viable |" in capsys.readouterr().out


def test_the_verb_takes_a_run_directory_and_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, plan = _saved(tmp_path, a=viable(), plan=_full_plan())
    _run(tmp_path / "run", recompiled=True)
    assert run(["diff", a, str(tmp_path / "run"), "--fail-on", "warning", "-q"]) == 1
    assert run(["diff", plan, plan, "-q"]) == 0
    capsys.readouterr()


def _full_plan() -> dict[str, Any]:
    from cftdiag.plan import FINGERPRINT

    return {**_plan(), "fingerprint": dict.fromkeys(FINGERPRINT)}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other/1"}', '{"schema": "cftdiag.kernels/1"}'])
def test_what_is_no_document_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(text)
    (good,) = _saved(tmp_path, a=viable())
    assert run(["diff", good, str(tmp_path / "x.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_long_lists_are_cut_and_markup_stays_text() -> None:
    after = viable()
    after["undetermined"] = [f"<b>note</b> | {'abc'[i % 3] * (i + 1)}" for i in range(40)]
    found = compare.diff(viable(), after)
    out = io.StringIO()
    view.show(found, file=out)
    assert "... 10 more" in out.getvalue()
    page = view.render(found)
    assert "<b>" not in page.replace("\\<b>", "") and "... 10 more" in page
