"""The patch of a check: which remedies, in which files, and what a proof keeps."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from check_samples import not_viable, recompiles

from cftdiag.cli.main import run
from cftdiag.errors import InputError
from cftdiag.fix import patch, prove

PROGRAM = "import torch\n\n\ndef wrap(model):\n    model.compile(dynamic=False)\n    return model\n"


def _data(
    tmp_path: Path, arguments: Sequence[str] = ("check", "--model", "train.py:build")
) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(PROGRAM)
    return {**recompiles(), "asked": {"arguments": list(arguments), "directory": str(tmp_path)}}


def _remedy(change: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "summary": "do it",
        "change": change,
        "edit": None,
        "verified": None,
        "applicability": "by_hand",
        **more,
    }


def _with(data: dict[str, Any], *remedies: dict[str, Any]) -> dict[str, Any]:
    finding = {**data["findings"][0], "remedies": list(remedies)}
    return {**data, "findings": [finding]}


def test_candidates_are_mechanical_and_the_proved_ones_lead(tmp_path: Path) -> None:
    data = _with(
        _data(tmp_path),
        {**_remedy({}), "change": None},
        _remedy({"drop_last": True}),
        _remedy({"a": 1}, verified=False),
        _remedy({"b": 1}, applicability="diagnosis"),
        _remedy({"torch._dynamo.config.x": 1}, unsafe=True),
        _remedy({"dynamic": True}, verified=True, edit="block.compile(dynamic=True)"),
        _remedy({"torch._dynamo.config.y": 1}, verified=True, edit="y = 1"),
    )
    data["change_first"] = [{"edit": "y = 1", "before": {}, "after": {}}]
    found = patch.candidates(data)
    assert [next(iter(c.change)) for c in found] == [
        "torch._dynamo.config.y",
        "dynamic",
        "torch._dynamo.config.x",
        "drop_last",
    ]
    assert [c.unsafe for c in found] == [False, False, True, False]
    assert [c.changes_numbers for c in found] == [False, False, False, True]


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--model", "train.py:build"],
        ["check", "--model=train.py"],
        ["check", "--steps", "3", "--", "torchrun", "--nproc-per-node=2", "train.py", "--lr", "1"],
    ],
)
def test_the_files_are_those_that_were_checked(tmp_path: Path, arguments: list[str]) -> None:
    data = _data(tmp_path, arguments)
    assert patch.files_of(data) == [tmp_path / "train.py"]
    (tmp_path / "model.py").write_text("")
    assert patch.files_of(data, [tmp_path / "model.py"]) == [tmp_path / "train.py", tmp_path / "model.py"]
    assert patch.files_of(_data(tmp_path, ["check", "--model", "Qwen3-4B"])) == []


def test_a_diff_is_taken_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.rstrip("\n"))
    [one] = patch.patches({file: patch.read(file)}, {"dynamic": True}) or []
    subprocess.run(["git", "apply", "-"], input=one.diff().encode(), check=True, cwd=tmp_path)
    assert file.read_text() == PROGRAM.rstrip("\n").replace("False", "True")


def test_keywords_go_into_every_file_and_settings_into_one(tmp_path: Path) -> None:
    texts = {tmp_path / "a.py": "import torch\n", tmp_path / "b.py": PROGRAM}
    change = {"torch._dynamo.config.z": 1, "dynamic": True}
    made = {p.path.name: p.after for p in patch.patches(texts, change) or []}
    assert made["a.py"].endswith("torch._dynamo.config.z = 1\n")
    assert made["b.py"] == PROGRAM.replace("False", "True")
    assert patch.patches(texts, {"ac": "full"}) is None


def test_a_check_shows_the_diff_of_each_edit(tmp_path: Path) -> None:
    data = _with(_data(tmp_path), _remedy({"dynamic": True}), _remedy({"ac": "full"}))
    [(edit, diff)] = patch.diffs(data).items()
    assert edit == "block.compile(dynamic=True)"
    assert "-    model.compile(dynamic=False)\n+    model.compile(dynamic=True)\n" in diff
    (tmp_path / "train.py").write_text("def broken(:\n")
    assert patch.diffs(data) == {}


def test_yaml_keeps_its_comments() -> None:
    text = "model_name_or_path: x\ndynamic: false  # slow\nbatch_size: 8\n"
    [one] = patch.patches({Path("run.yaml"): text}, {"compile_kwargs": {"dynamic": "true"}}) or []
    assert one.after == text.replace("false", '"true"')
    [one] = patch.patches({Path("run.yaml"): text}, {"attn": "sdpa"}) or []
    assert one.after == text + "attn: sdpa\n"


def _checks(data: dict[str, Any], mends: Mapping[str, int]) -> prove.Check:
    """A check of which findings are left by what stands in the patched file."""

    def check(changed: Sequence[patch.Patch]) -> Mapping[str, Any]:
        text = changed[0].after if changed else ""
        if "breaks_the_model" in text:
            raise InputError("the model cannot be built")
        left = min([count for word, count in mends.items() if word in text], default=2)
        findings = [{**data["findings"][0], "count": left}] if left else []
        return {**data, "findings": findings, "compiles": data["compiles"] * (left + 1)}

    return check


def test_a_proof_keeps_what_leaves_less(tmp_path: Path) -> None:
    data = _with(
        _data(tmp_path),
        _remedy({"torch._dynamo.config.breaks_the_model": 1}),
        _remedy({"torch._dynamo.config.idle": 1}),
        _remedy({"torch._dynamo.config.half": 1}),
        _remedy({"ac": "full"}),
        _remedy({"dynamic": True}),
        _remedy({"torch._dynamo.config.never_reached": 1}),
    )
    file = tmp_path / "train.py"
    tried, homeless = prove.prove(
        patch.candidates(data), [file], _checks(data, {"half": 1, "dynamic=True": 0})
    )
    assert [(next(iter(row.remedy.change)).rpartition(".")[2], row.helps) for row in tried] == [
        ("breaks_the_model", False),
        ("idle", False),
        ("half", True),
        ("dynamic", True),
    ]
    assert tried[0].reason == "the model cannot be built"
    assert tried[3].after is not None and tried[3].after.against(tried[3].before) == (
        "recompiles 1 -> 0, compiles 2 -> 1"
    )
    assert [dict(c.change) for c in homeless] == [{"ac": "full"}]


def test_less_of_one_for_more_of_another_is_no_help() -> None:
    before = prove.Figures(graph_breaks=2, recompiles=0, errors=0, compiles=4)
    assert dataclasses.replace(before, graph_breaks=0).better(before)
    assert not dataclasses.replace(before, graph_breaks=0, recompiles=1).better(before)
    assert not before.better(before)


def test_a_check_is_made_again_with_the_copy_and_without_its_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    copies = {tmp_path / "train.py": Path("/copy/train.py")}
    again = prove._again(
        ["check", "--model=train.py:build", "--json", "x.json", "--plan=p", "-q", "--dynamic", "true"],
        tmp_path,
        copies,
        Path("/s.json"),
    )
    assert again == [
        "check", "--model=/copy/train.py:build", "--dynamic", "true", "--no-verify", "--fail-on", "never", "--json", "/s.json", "-q",
    ]  # fmt: skip
    command = prove._again(
        ["check", "--json", "x", "--", "python", "train.py", "--json", "y"], tmp_path, copies, Path("s")
    )
    assert command[-5:] == ["--", "python", "/copy/train.py", "--json", "y"]


def test_copies_stand_beside_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("X = 1\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    one = patch.Patch(path=tmp_path / "train.py", before=PROGRAM, after="import parts\n")
    with prove._overlay([one]) as copies:
        copy = copies[tmp_path / "train.py"]
        assert copy.read_text() == "import parts\n" and (copy.parent / "parts.py").read_text() == "X = 1\n"
    assert (tmp_path / "train.py").read_text() == PROGRAM and (tmp_path / "parts.py").exists()


def test_the_verb_prints_a_diff_or_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = _data(tmp_path)
    monkeypatch.setattr(prove, "checker", lambda asked: _checks(data, {"dynamic=True": 0}))
    (tmp_path / "check.json").write_text(json.dumps(data))
    assert run(["fix", "check.json"]) == 0
    out, err = capsys.readouterr()
    assert "-    model.compile(dynamic=False)\n+    model.compile(dynamic=True)\n" in out
    assert err == "proved: block.compile(dynamic=True): recompiles 2 -> 0, compiles 3 -> 1\n"
    assert (tmp_path / "train.py").read_text() == PROGRAM
    assert run(["fix", "check.json", "--apply"]) == 0
    assert (tmp_path / "train.py").read_text() == PROGRAM.replace("False", "True")


def test_nothing_is_written_that_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _data(tmp_path)
    monkeypatch.setattr(prove, "checker", lambda asked: _checks(data, {}))
    (tmp_path / "check.json").write_text(json.dumps(data))
    assert run(["fix", str(tmp_path / "check.json"), "--apply"]) == 1
    assert "left out" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == PROGRAM


def test_unsafe_ones_are_named_and_not_tried_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _with(_data(tmp_path), _remedy({"dynamic": True}, unsafe=True, edit="block.compile(dynamic=True)"))
    monkeypatch.setattr(prove, "checker", lambda asked: _checks(data, {"dynamic=True": 0}))
    (tmp_path / "check.json").write_text(json.dumps(data))
    assert run(["fix", str(tmp_path / "check.json")]) == 1
    assert capsys.readouterr() == ("", "not tried without --unsafe: block.compile(dynamic=True)\n")
    assert run(["fix", str(tmp_path / "check.json"), "--unsafe"]) == 0


def test_a_published_model_has_no_file_to_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "check.json").write_text(json.dumps(not_viable()))
    assert run(["fix", str(tmp_path / "check.json")]) == 2
    assert "--file" in capsys.readouterr().err.splitlines()[-1]
