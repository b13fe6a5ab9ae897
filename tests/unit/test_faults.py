"""The harness of ``make faults``: what it writes, what it takes from torch's log, and how it judges."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults import __main__ as faults
from tests.faults import carry_out
from tests.faults.architectures import ARCHITECTURES
from tests.faults.fault import STYLES, Fault, injectors
from tests.faults.judge import (
    NotConfirmed,
    claims,
    compare,
    compiles_differ,
    differ,
    expected,
    needs_eager,
    places,
    refuted,
)
from tests.faults.program import Choice, Program, draw, write
from tests.faults.run import Result
from tests.faults.truth import TorchLog, _note_silence

LLAMA = next(a for a in ARCHITECTURES if a.type == "llama")
BREAK = Fault(
    kind="graph_break",
    cause="tensor.item",
    log=r"Tensor\.item\(\)",
    body="level = x.mean().item()  # HERE\nx = x * level",
    advice="tensor",
)


def program(
    folder: Path, fault: Fault = BREAK, style: str = "block", chosen: tuple[int, ...] | None = None
) -> Program:
    choice = Choice(
        injector="own", fault=fault, style=style, attribute="", holder="LlamaDecoderLayer", chosen=chosen
    )
    return write(LLAMA, [choice], folder, 2, 7)


def truth(
    made: Program, line: int | None = None, text: str = "Unsupported Tensor.item() call"
) -> dict[str, Any]:
    ((file, lines),) = made.placed[0].here.items()
    log = f"Graph break in user code at {file}:{line or lines[0]}\nGraph Break Reason: {text}"
    return {
        "events": [{"kind": "graph_break", "step": 1, "block": "model.layers.0", "text": log}],
        "error": "",
        "losses": [],
    }


def finding(made: Program, **changes: Any) -> dict[str, Any]:
    ((file, (line, *_)),) = made.placed[0].here.items()
    return {
        "kind": "graph_break",
        "cause": "tensor.item",
        "severity": "error",
        "blocks": ["model.layers.*"],
        "where": {"file": file, "line": line, "function": "forward", "code": ""},
        "steps": [1],
        "explanation": "a value is read",
        "remedies": [{"summary": "Keep it a tensor.", "applicability": "by_hand", "verified": None}],
        **changes,
    }


@pytest.mark.parametrize("style", STYLES)
def test_each_style_puts_the_marked_line_where_the_program_says(tmp_path: Path, style: str) -> None:
    made = program(tmp_path, style=style)
    ((file, (line,)),) = made.placed[0].here.items()
    assert re.search(r"level = \w+\.mean\(\)\.item\(\)$", Path(file).read_text().split("\n")[line - 1])
    for path in tmp_path.rglob("*.py"):
        ast.parse(path.read_text())
        assert "HERE" not in path.read_text() and "# @0" not in path.read_text()


def test_a_fault_in_one_block_has_a_class_of_its_own(tmp_path: Path) -> None:
    made = program(tmp_path, chosen=(1,))
    text = (tmp_path / "modeling_llama.py").read_text()
    original, copy = (
        text[text.index(f"class {n}(") :] for n in ("LlamaDecoderLayer", "LlamaDecoderLayerSpecial")
    )
    assert text.count(".mean().item()") == 1 and ".mean().item()" in copy
    assert len(original) > len(copy)
    assert made.placed[0].blocks == ("model.layers.1",)


def test_a_program_is_the_same_again(tmp_path: Path) -> None:
    known = injectors()
    for name in known:
        texts = []
        for folder in ("one", "two"):
            draw(known, name, Random(3), tmp_path / folder, second=True)
            texts.append([p.read_text() for p in sorted((tmp_path / folder).rglob("*.py"))])
        assert texts[0] == texts[1], name


def test_a_recompile_is_placed_by_each_guard_and_a_break_outside_of_torch() -> None:
    text = (
        "Recompiling function forward in /x/a.py:9\n    triggered by the following guard failure(s):\n"
        "    - 0/1: self.calls == 1    # self.calls += 1  # mp/fx/a.py:10 in forward (HINT: ...)"
    )
    assert places("recompile", text) == [("mp/fx/a.py", 10)]
    text = (
        "Graph break in user code at /v/site-packages/torch/_dynamo/polyfills/__init__.py:505\nReason\n"
        'User code traceback:\n  File "/x/a.py", line 3, in forward\n'
        '  File "/v/site-packages/torch/_dynamo/polyfills/__init__.py", line 505, in object_new\n'
    )
    assert places("graph_break", text) == [("/x/a.py", 3)]


def test_torch_has_to_show_the_fault_and_nothing_else(tmp_path: Path) -> None:
    made = program(tmp_path)
    (want,) = expected(made, truth(made))
    assert want.steps == {1} and want.blocks == {"model.layers.0"} and len(want.lines or ()) == 1
    with pytest.raises(NotConfirmed, match="does not show"):
        expected(made, {"events": [], "error": ""})
    with pytest.raises(NotConfirmed, match="beside the fault"):
        expected(made, truth(made, line=1))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({"cause": "generic_break"}, "missing"),
        ({"blocks": ["lm_head"]}, "blocks"),
        ({"steps": [3]}, "steps"),
        ({"remedies": []}, "no remedy says"),
        (
            {"remedies": [{"summary": "Keep a tensor.", "applicability": "diagnosis", "verified": None}]},
            "no remedy says",
        ),
    ],
)
def test_the_judge_names_what_is_wrong(tmp_path: Path, changes: dict[str, Any], wrong: str | None) -> None:
    made = program(tmp_path)
    said = compare(
        {"findings": [finding(made, **changes)]}, expected(made, truth(made)), made, lambda _: True
    )
    assert bool(said) == (wrong is not None)
    assert wrong is None or wrong in said[0]


def test_a_finding_beside_the_fault_and_a_remedy_that_does_not_work_are_wrong(tmp_path: Path) -> None:
    made = program(tmp_path)
    wanted = expected(made, truth(made))
    beside = finding(made, cause="print_call", severity="warning")
    assert "beside" in compare({"findings": [finding(made), beside]}, wanted, made, lambda _: True)[0]
    assert "by hand" in compare({"findings": [finding(made)]}, wanted, made, lambda _: False)[0]
    moved = finding(made)
    moved["where"]["line"] += 1
    assert "placed at" in compare({"findings": [moved]}, wanted, made, lambda _: True)[0]


def test_a_record_of_two_faults_holds_neither_to_its_step(tmp_path: Path) -> None:
    latch, size = (
        Fault(kind="recompile", cause=c, log=log, body="x = x * 1.0  # HERE", lines="block", advice="once")
        for c, log in (("first_call_latch", "_state is None"), ("seq_len", "size mismatch"))
    )
    chosen = [
        Choice(injector=n, fault=f, style="block", attribute="", holder="LlamaDecoderLayer", chosen=None)
        for n, f in (("latch", latch), ("size", size))
    ]
    made = write(LLAMA, chosen, tmp_path, 2, 7)
    texts = {2: "Recompiling: _state is None", 3: "Recompiling: size mismatch, _state is None"}
    events = [
        {"kind": "recompile", "step": step, "block": "model.layers.0", "text": text}
        for step, text in texts.items()
    ]
    first, second = expected(made, {"events": events, "error": ""})
    assert (first.alone, first.steps) == ({2}, {2, 3}) and (second.alone, second.steps) == (set(), {3})
    for steps, right in (([2], True), ([2, 3], True), ([3], False)):
        told = [
            finding(made, kind="recompile", cause="first_call_latch", steps=steps),
            finding(made, kind="recompile", cause="seq_len", steps=[3]),
        ]
        for each in told:
            each["remedies"][0]["summary"] = "Do it once."
        assert (compare({"findings": told}, [first, second], made, lambda _: True) == []) == right


def test_an_edit_is_read_as_its_reader_reads_it() -> None:
    edit = carry_out.read(
        "block.compile(dynamic=True, recompile_limit=16)\n"
        "torch._dynamo.config.allow_unspec_int_on_nn_module = True\n"
        "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.info)\n"
        "torch._dynamo.mark_dynamic(hidden_states, 1)\n"
        "torch._dynamo.decorators.mark_unbacked(x, 0)\n"
        "export TORCH_COMPILE_DYNAMIC_SOURCES=\"L['x']\"\n"
        "model.config.use_cache = False"
    )
    assert edit.keywords == {"dynamic": True, "recompile_limit": 16}
    assert edit.marks == [("mark_dynamic", "hidden_states", 1), ("mark_unbacked", "x", 0)]
    assert edit.settings == [
        "torch._dynamo.config.allow_unspec_int_on_nn_module = True",
        "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.info)",
        "torch.compiler.config.dynamic_sources = \"L['x']\"",
    ]
    assert edit.model == ["model.config.use_cache = False"]
    assert carry_out.read("DataLoader(..., drop_last=True)").drop_last
    assert carry_out.read("model(**batch)  # once, before anything is compiled").warm_up
    assert carry_out.read("x.requires_grad_(True)  # every floating input of the block").inputs_need_grad
    for flag in ("--compile-backend eager", "import os; os.remove('x')"):
        with pytest.raises(carry_out.NotMechanical):
            carry_out.read(flag)


def test_every_edit_that_a_check_can_write_is_read() -> None:
    from cftdiag.check.changes import edit_of
    from cftdiag.diagnose import CAUSES

    facts = {
        "argument": "x",
        "dim": 1,
        "more": 16,
        "dynamic_source": "L['x']",
        "setting": "logging.Logger.info",
    }
    own = ("pad_to_multiple_of", "attn", "flash_varlen", "dtype", "ac", "compile_scope", "compile_backend")
    unread = []
    for cause in CAUSES.values():
        for remedy in cause.remedies:
            if remedy.change is None or set(own) & set(remedy.change):
                continue  # flags of the check, for models of a config
            text = re.sub(r"\{(\w+)\}", lambda m: str(facts.get(m[1], "y")), edit_of(remedy.change))
            try:
                carry_out.read(text)
            except carry_out.NotMechanical as line:
                unread.append(f"{cause.key}: {line}")
    assert not unread


def test_batches_and_arguments_are_changed_as_an_edit_asks() -> None:
    import torch

    batches = [{"x": torch.ones(rows, 3)} for rows in (4, 4, 2)]
    assert len(carry_out.batches_of(carry_out.Edit(drop_last=True), batches)) == 2
    assert len(carry_out.batches_of(carry_out.Edit(), batches)) == 3

    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x

    block, x = Block(), torch.ones(2, 3)
    edit = carry_out.Edit(
        marks=[("mark_dynamic", "x", 1), ("mark_dynamic", "mask", 0)], inputs_need_grad=True
    )
    assert carry_out.arguments_changed(edit, block, block.forward)(x) is x
    assert x._dynamo_dynamic_indices == {1} and x.requires_grad
    call = block.forward
    assert carry_out.arguments_changed(carry_out.Edit(), block, call) is call


def test_torch_refutes_a_remedy_that_the_check_calls_verified(tmp_path: Path) -> None:
    made = program(tmp_path)
    before = {**truth(made), "graphs": [1, 1]}
    proved = {
        "summary": "Let torch capture it.",
        "applicability": "safe",
        "verified": True,
        "edit": "torch._dynamo.config.capture_scalar_outputs = True",
        "before": {"compiles": 2, "count": 1},
        "after": {"compiles": 1, "count": 0},
    }
    told = finding(made, remedies=[proved])
    ((_, remedy),) = claims({"findings": [told, finding(made, severity="info", remedies=[proved])]})

    def against(after: dict[str, Any]) -> list[str]:
        return list(refuted(told, remedy, made, before, {"events": [], "error": "", "graphs": [1], **after}))

    assert against({}) == []
    assert "2 compiles before, torch's log has 1" not in "".join(against({}))
    assert "1 compiles after, torch's log has 2" in against({"graphs": [1, 1]})[0]
    assert "still has graph_break" in against({"events": before["events"]})[0]
    assert "fails in torch's own process" in against({"error": "boom"})[0]


def test_compiles_and_losses_are_held_against_torch() -> None:
    report = {"compiles": [{"step": 3}, {"step": 1}]}
    assert not compiles_differ(report, {"graphs": [1, 3]})
    assert "torch's at [1]" in compiles_differ(report, {"graphs": [1]})[0]


def test_what_torch_does_not_log_is_held_against_the_same_steps_run_eager(tmp_path: Path) -> None:
    numbers = program(tmp_path / "numbers", dataclasses.replace(BREAK, kind="numerics"))
    same = {"losses": [1.0, 2.0]}
    assert not list(differ(numbers, {"losses": [1.0, 2.0001]}, same))
    (event,) = differ(numbers, {"losses": [1.0, 2.5]}, same)
    assert (event["kind"], event["step"], event["text"]) == ("numerics", 2, "loss 2.5 compiled, 2.0 eager")
    assert not needs_eager(program(tmp_path / "break")) and needs_eager(numbers)

    hook = program(
        tmp_path / "hook", dataclasses.replace(BREAK, kind="error", watch="return len(model.seen)")
    )
    assert needs_eager(hook) and "return {0: watch_0(model," in hook.path.read_text()
    seen = {"losses": [1.0, 1.0], "watched": [{"0": "0"}, {"0": "2"}]}
    assert not list(differ(hook, seen, seen))
    (event,) = differ(hook, {**seen, "watched": [{"0": "0"}, {"0": "0"}]}, seen)
    assert (event["kind"], event["step"], event["text"]) == ("error", 2, "0 compiled, 2 eager")


def test_blocks_that_never_run_compiled_are_records_of_the_truth() -> None:
    def noted(calls: dict[str, int], graphs: list[int]) -> list[tuple[str, int, str]]:
        log = TorchLog()
        _note_silence(log, calls, graphs, 2)
        return [(e["kind"], e["step"], e["block"]) for e in log.events]

    assert noted({"a": 2, "b": 2}, [1]) == []
    assert noted({"a": 2, "b": 0}, [1]) == [("error", 1, "b"), ("error", 2, "b")]
    assert noted({"a": 2}, []) == [("perf", 1, "a"), ("perf", 2, "a")]


def test_a_run_goes_on_with_what_is_not_kept_as_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[int]] = []

    def run_them(seed: int, indices: list[int], *_: Any) -> Iterator[tuple[Result, float]]:
        asked.append(indices)
        for i in indices:
            wrong = ["missing"] if (i, len(asked)) == (1, 1) else []
            yield Result(index=i, injector="own", causes=["dtype"], program="p", path="x", wrong=wrong), 1.0

    monkeypatch.setattr(faults, "results_of", run_them)
    arguments = ["--seed", "7", "--count", "3", "--folder", str(tmp_path), "--keep", str(tmp_path / "kept")]
    assert faults.main(arguments) == 1
    assert faults.main([*arguments, "--count", "4"]) == 0
    assert asked == [[0, 1, 2], [1, 3]]
    assert "4 of 4 programs right" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        faults.main([*arguments, "--seed", "8"])
