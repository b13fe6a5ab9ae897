"""Every objective trains under every compile scope as eager does, goes on bit for bit, and is exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from tests.warm import Warm
from trainer import demo
from trainer.config import TrainConfig

#: Graphs by scope: blocks of one kind share one; a loss of pairs has one for a chunk and one for the row.
GRAPHS = {"block": 1, "loss": 2, "block+loss": 3, "model": 1, "model+loss": 1}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "dpo": {"objective": "dpo"},
    "grpo": {
        "objective": "grpo", "reward": f"{__name__}:vowels", "grpo_generations": 3, "grpo_completion_tokens": 8, "batch_size": 4,
    },
}  # fmt: skip
EXACT = (
    "reward",
    "val_reward",
    "answer_tokens",
    "clipped",
    "kl",
    "step",
    "loss",
    "grad_norm",
    "grad_norm_raw",
    "val_loss",
    "accuracy",
    "margin",
    "lengths",
)


def vowels(completions: list[Any], **_columns: Any) -> list[float]:
    """A reward that differs between any two answers of a model that knows nothing."""
    texts = [answer[-1]["content"] for answer in completions]
    return [sum(c in "aeiou" for c in text) + len(text) / 100 + sum(map(ord, text)) / 1e5 for text in texts]


@pytest.fixture(scope="module")
def files(tiny: Path) -> Path:
    demo.write_pairs(tiny / "dpo.jsonl", count=24)
    demo.write_prompts(tiny / "grpo.jsonl", count=24)
    demo.write_texts(tiny / "pretrain.jsonl", count=24)
    return tiny


def train(files: Path, out: Path, objective: str, **values: Any) -> list[dict[str, Any]]:
    base = dict(
        model_name_or_path=str(files), random_init=True, data_path=str(files / f"{objective}.jsonl"), device="cpu", max_tokens_per_gpu=512,
        batch_size=6, max_steps=3, learning_rate=1e-2, export=False, loss_chunks=2, train_dtype="float64", compile_backend="eager",
        output_dir=str(out),
    )  # fmt: skip
    base |= OBJECTIVES.get(objective, {"objective": objective})
    torch._dynamo.reset()
    trainer.run_training({**base, **values})
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


_SCOPE = pytest.mark.everything("the parts apart and the model in one stay; these are the same code")


#: What stays: the parts apart, and all in one.
_STAY = {("dpo", "block+loss"), ("grpo", "model+loss")}


@pytest.mark.parametrize(
    ("objective", "scope"),
    [
        pytest.param(objective, scope, marks=() if (objective, scope) in _STAY else _SCOPE)
        for objective in OBJECTIVES
        for scope in ("block", "loss", "block+loss", "model", "model+loss")
    ],
)
def test_an_objective_trains_as_eager_does_under(
    files: Path, tmp_path: Path, objective: str, scope: str
) -> None:
    backend = "aot_eager" if scope == "block+loss" else "eager"
    eager = train(files, tmp_path / "e", objective)
    compiled = train(files, tmp_path / "c", objective, compile_scope=scope, compile_backend=backend)
    for one, other in zip(compiled, eager, strict=True):
        for key in ("loss", "grad_norm"):
            assert one[key] == pytest.approx(other[key], rel=1e-7), (key, one["step"])
    assert [r["graphs"] for r in compiled] == [GRAPHS[scope], 0, 0]
    assert not any(r["recompiles"] for r in compiled)
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) >= 2


_LOSS = pytest.mark.everything(
    "12 s each; the first stays, and what each computes is held against TRL's numbers"
)


@pytest.mark.parametrize(
    ("objective", "values"),
    [
        ("dpo", {"dpo_loss": "sigmoid"}),
        pytest.param("dpo", {"dpo_loss": "ipo", "lora": True}, marks=_LOSS),
        pytest.param("dpo", {"dpo_loss": "orpo"}, marks=_LOSS),
    ],
)
def test_what_is_preferred_becomes_likelier(
    files: Path, tmp_path: Path, objective: str, values: dict[str, Any]
) -> None:
    """Twelve steps on two batches: the margin grows. Where there is a reference it begins at zero."""
    records = train(
        files,
        tmp_path,
        objective,
        max_steps=12,
        max_epochs=12,
        batch_size=24,
        max_tokens_per_gpu=4096,
        **values,
    )
    if values["dpo_loss"] != "orpo":
        assert abs(records[0]["margin"]) < 1e-9 and records[-1]["accuracy"] > 0.6
    assert records[-1]["margin"] > records[0]["margin"] and records[-1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize(
    ("objective", "values"),
    [
        pytest.param(
            "dpo",
            {"compile_scope": "block+loss"},
            marks=pytest.mark.everything("17 s; GRPO keeps the same and the numbers that its rollouts draw"),
        ),
        # continued between the first and the second of three updates on the same answers
        ("grpo", {"compile_scope": "block+loss", "lora": True, "grpo_beta": 0.1, "grpo_iterations": 3}),
        pytest.param("grpo", {"grpo_beta": 0.1}, marks=pytest.mark.everything("LoRA's adapters stay")),
    ],
)
def test_an_objective_goes_on_bit_for_bit(
    files: Path, tmp_path: Path, objective: str, values: dict[str, Any]
) -> None:
    demo.config(
        num_hidden_layers=1, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
        attention_dropout=0.1,
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    demo.tokenizer().save_pretrained(tmp_path / "model")
    values = {
        **values, "model_name_or_path": str(tmp_path / "model"), "validation_split": 0.25, "validate_every": 2, "max_steps": 5,
        "train_dtype": "float32",
    }  # fmt: skip
    whole = train(files, tmp_path / "whole", objective, checkpoint_every=2, **values)
    shutil.copytree(tmp_path / "whole", tmp_path / "part", symlinks=True)
    again = train(
        files,
        tmp_path / "part",
        objective,
        **values,
        resume=str(tmp_path / "part" / "checkpoints" / "step-00000004"),
    )
    wanted = [{key: record.get(key) for key in EXACT} for record in whole]
    assert [{key: record.get(key) for key in EXACT} for record in again] == wanted
    assert "val_loss" in whole[3] and whole[3]["loss"] != whole[1]["loss"]
    if objective == "grpo":
        # As the policy leaves where it began; what dropout alone makes of it is small.
        assert 0 < 10 * whole[0]["kl"] < whole[4]["kl"]
    if "grpo_iterations" in values:
        assert [whole[i]["reward"] == whole[i - 1]["reward"] for i in (1, 2, 3, 4)] == [
            True,
            True,
            False,
            True,
        ]
        assert [r["clipped"] > 0 for r in whole] == [False, True, True, False, True], (
            "the first trains what sampled"
        )


@pytest.mark.everything("15 s; two ranks of the other objectives stay")
def test_two_ranks_learn_what_one_does(files: Path, tmp_path: Path, warm: Warm) -> None:
    """Full and LoRA, the reference's log-probabilities made by both ranks; what is exported is one model."""
    runs = [
        dict(
            model_name_or_path=str(files), random_init=True, data_path=str(files / "dpo.jsonl"), device="cpu", max_tokens_per_gpu=512,
            batch_size=6, max_steps=3, learning_rate=1e-2, train_dtype="float64", objective="dpo", method=method, export=method == "lora",
            compile_scope="block+loss", compile_backend="eager", output_dir=str(tmp_path / method),
        )
        for method in ("full", "lora")
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    warm.run(Path(__file__).with_name("resume_worker.py"), str(tmp_path / "runs.json"), ranks=2)
    for method in ("full", "lora"):
        two = [json.loads(line) for line in (tmp_path / method / "metrics.jsonl").read_text().splitlines()]
        one = train(files, tmp_path / f"{method}1", "dpo", method=method)
        for a, b in zip(two, one, strict=True):
            for key in ("loss", "grad_norm", "accuracy", "margin"):
                assert a[key] == pytest.approx(b[key], rel=1e-7, abs=1e-9), (method, key, a["step"])
    from transformers import AutoModelForCausalLM

    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "lora" / "hf")
    assert all(bool(torch.isfinite(p).all()) for p in exported.parameters())


def test_texts_are_learnt_whole(files: Path, tmp_path: Path) -> None:
    """Pre-training is supervised fine-tuning on the same rows, to the bit; conversations are no rows of it."""
    texts = train(files, tmp_path / "a", "pretrain")
    same = train(files, tmp_path / "b", "sft", data_path=str(files / "pretrain.jsonl"))
    assert [r["loss"] for r in texts] == [r["loss"] for r in same]
    with pytest.raises(
        ValueError, match=r"data\.jsonl:1: a row of objective pretrain has `text`; its keys are messages"
    ):
        train(files, tmp_path / "c", "pretrain", data_path=str(files / "data.jsonl"))


@pytest.mark.parametrize(("objective", "scope"), [("dpo", "block+loss"), ("grpo", "model+loss")])
def test_the_preflight_compiles_what_the_run_does(
    files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], objective: str, scope: str
) -> None:
    from cftdiag.check import CheckOptions  # noqa: F401 - imported before the check's children are forked
    from trainer.preflight import check

    values = dict(
        model_name_or_path=str(files), random_init=True, data_path=str(files / f"{objective}.jsonl"), device="cpu", max_tokens_per_gpu=512,
        batch_size=6, max_steps=3, loss_chunks=2, compile_scope=scope, compile_backend="eager", output_dir=str(tmp_path),
    )  # fmt: skip
    values |= OBJECTIVES[objective]
    report = check(TrainConfig(**values), world=1, verify=False).to_dict()
    assert report["verdict"] == "viable" and not report["findings"]
    assert len(report["compiles"]) == GRAPHS[scope]
    assert report["subject"]["objective"] == objective


def test_a_compiled_loss_of_pairs_that_is_another_is_seen(files: Path) -> None:
    from trainer.loss_check import compare_loss
    from trainer.model import open_source

    config = TrainConfig(
        model_name_or_path=str(files),
        objective="dpo",
        compile_scope="loss",
        compile_backend="eager",
        loss_chunks=2,
    )
    wanted = dict(device=torch.device("cpu"), dtype=torch.float32)
    model_config = open_source(config).config

    def right(graph: Any, inputs: Any) -> Any:
        return graph.forward

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(2 * t if t.is_floating_point() else t for t in graph.forward(*args))

    assert compare_loss(config, model_config, right, **wanted) == []
    assert "differs from eager's" in compare_loss(config, model_config, wrong, **wanted)[0]


def test_answers_that_are_rewarded_become_likelier(files: Path, tmp_path: Path) -> None:
    """The embedded reward: it grows, and the export is the policy that earned it."""
    records = train(
        files, tmp_path, "grpo", reward="trainer.demo:reward", max_steps=16, grpo_generations=16, learning_rate=3e-2, export=True,
        train_dtype="float32",
    )  # fmt: skip
    rewards = [record["reward"] for record in records]
    assert sum(rewards[-4:]) > 3 * sum(rewards[:4]) and all(0 <= r <= 1 for r in rewards)
    # The policy is the one that sampled: nothing is clipped, and the loss is that of ratios of 1.
    assert not any(record["clipped"] for record in records)
    assert records[0]["samples"] == 4 * 16 and records[0]["loss_tokens"] <= 4 * 16 * 8
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "hf")


def fails(**_columns: Any) -> list[float]:
    """A reward with a mistake."""
    raise KeyError("answer")


def too_few(completions: list[Any], **_columns: Any) -> list[float]:
    """One number for all."""
    return [1.0]


def no_number(completions: list[Any], **_columns: Any) -> list[float]:
    """What cannot be compared."""
    return [float("nan")] * len(completions)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"reward": f"{__name__}:fails"}, r"the reward .*:fails failed: KeyError"),
        ({"reward": f"{__name__}:too_few"}, r"gave 1 numbers for 12 answers"),
        ({"reward": f"{__name__}:no_number"}, r"gave nan; a reward is a finite number"),
        ({"reward": "nowhere:at_all"}, r"reward nowhere:at_all: .*No module named 'nowhere'"),
        ({"reward": "trainer.demo:nothing"}, r"reward trainer.demo:nothing: .*has no attribute 'nothing'"),
        ({"reward": "trainer.demo"}, r"reward is module:function, not 'trainer.demo'"),
        ({"reward": None}, r"no reward: give --reward module:function"),
        ({"grpo_completion_tokens": 512}, r"leaves no room for a prompt in rows of 512 tokens"),
        ({"grpo_generations": 1}, r"at least 2, not 1: answers are compared"),
        ({"grpo_completion_tokens": 490}, r"grpo\.jsonl:1: \d+ tokens, a row holds 22"),
    ],
)
def test_what_grpo_cannot_use_is_told(
    files: Path, tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        train(files, tmp_path, "grpo", **values)


def test_grpo_is_one_process(files: Path) -> None:
    from trainer.objectives import objective_of

    objective = objective_of(TrainConfig(objective="grpo", reward="trainer.demo:reward"))
    with pytest.raises(ValueError, match="objective grpo trains in one process, not in 2"):
        objective.require(world=2, attn="sdpa", tokenizer=demo.tokenizer())
    with pytest.raises(ValueError, match="attention flex_attention does not run; give --attn sdpa"):
        objective.require(world=1, attn="flex_attention", tokenizer=demo.tokenizer())


@pytest.mark.parametrize(
    ("objective", "method", "scope"), [("dpo", "lora", "model+loss"), ("grpo", "full", "block+loss")]
)
def test_the_check_of_a_model_takes_the_same_words(
    tiny: Path, objective: str, method: str, scope: str
) -> None:
    """Whole, with adapters too: what a block needs beside them must not be in a graph of the model."""
    from cftdiag.check import CheckOptions, run_check

    asked = CheckOptions(
        model=str(tiny), objective=objective, objective_from="trainer.preflight:as_objective", method=method, packed=True,
        transform="trainer.preflight:as_method" if method != "full" else None, compile_scope=scope, lengths=(72, 96), verify=False,
        compile_backend="eager",
    )  # fmt: skip
    report = run_check(asked, None).to_dict()
    assert report["verdict"] == "viable" and not report["findings"]
    assert len(report["compiles"]) == GRAPHS[scope]
    assert report["subject"]["objective"] == objective
