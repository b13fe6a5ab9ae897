"""``cftdiag check --data``: the forecast, the regime map, the plan and the figure of a real file of lengths,
and bad files.
"""

from __future__ import annotations

import json

import pytest

import cftdiag
from cftdiag.cli.main import run

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "tiny")


@pytest.mark.everything("16 s; a case of the corpus compiles at every length, and dynamic shapes stay")
def test_static_shapes_compile_at_every_new_length(model, tmp_path):
    """With dynamic=False each new length is a graph: the forecast says at which step of the file's order."""
    (tmp_path / "lengths.txt").write_text("21\n34\n21\n55\n34\n")
    out, plan, plots = tmp_path / "out.json", tmp_path / "plan.json", tmp_path / "plots"
    arguments = [
        "check",
        "--model",
        model,
        "--data",
        str(tmp_path / "lengths.txt"),
        "--dynamic",
        "false",
        "--no-verify",
        "-q",
    ]
    code = run([*arguments, "--json", str(out), "--plan", str(plan), "--plots", str(plots)])
    report = json.loads(out.read_text())
    assert code == 0 and report["verdict"] == "viable_with_recompiles"
    forecast = report["forecast"]
    assert [(s["step"], s["length"]) for s in forecast["steps"]] == [(1, 21), (2, 34), (4, 55)]
    assert [s["cause"] for s in forecast["steps"]] == [None, "seq_len", "seq_len"]
    assert [(f["kind"], f["cause"]) for f in report["findings"]] == [("recompile", "seq_len")]
    assert {r["representative"]["length"] for r in forecast["regimes"]} == {21, 34, 55}
    assert forecast["warmed"]["steps"] == []
    loaded = cftdiag.load_plan(str(plan), expect={"attn": "sdpa", "dtype": "bfloat16"})
    assert len(loaded.regimes) == 3
    with pytest.raises(ValueError, match="attn"):
        cftdiag.load_plan(str(plan), expect={"attn": "eager"})
    assert list(plots.glob("*.png"))


@pytest.mark.everything("25 s; static shapes over a file stay, and dynamic ones in test_forecast_truth.py")
def test_dynamic_shapes_compile_once_for_the_whole_file(model, tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"len": 20 + i % 30}) + "\n" for i in range(400)))
    out = tmp_path / "out.json"
    code = run(
        [
            "check",
            "--model",
            model,
            "--data",
            str(tmp_path / "data.jsonl"),
            "--batch-size",
            "4",
            "--json",
            str(out),
            "--no-verify",
            "-q",
        ]
    )
    forecast = json.loads(out.read_text())["forecast"]
    assert (
        code == 0
        and forecast["compiles"] == 1
        and forecast["data"]["samples"] == 400
        and forecast["data"]["steps"] == 100
    )
    assert forecast["counts"]["probed"] >= 1


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "has no samples"),
        ("12\nabc\n", "2"),
        ("12\n-4\n", "-4"),
        ("12\n600\n", "512"),
    ],
    ids=["empty", "not a number", "negative", "beyond the positions"],
)
def test_a_bad_file_is_one_line_and_exit_2(model, tmp_path, capsys, text, said):
    (tmp_path / "lengths.txt").write_text(text)
    assert run(["check", "--model", model, "--data", str(tmp_path / "lengths.txt")]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--plan", "p.json"], "--data"),
        (["--shuffle-seed", "1"], "--data"),
        (["--data", "nowhere.txt"], "nowhere.txt"),
        (["--data", "x.txt", "--lengths", "5"], "drop --lengths"),
    ],
)
def test_options_that_do_not_go_together(model, capsys, arguments, said):
    assert run(["check", "--model", model, *arguments]) == 2
    assert said in capsys.readouterr().err
