"""Rows of the objectives: what they become, which are refused, and that a cache gives them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cftdiag.recipe.packing import IGNORE
from trainer import demo
from trainer.config import TrainConfig
from trainer.data import open_data
from trainer.records import Records
from trainer.rows import Reader

TOKENIZER = demo.tokenizer()
TALK = {
    "prompt": [{"role": "user", "content": "q"}],
    "chosen": [{"role": "assistant", "content": "good"}],
    "rejected": [{"role": "assistant", "content": "bad"}],
}


def row(record: dict[str, Any], objective: str = "dpo") -> Any:
    return Reader(tokenizer=TOKENIZER, vocabulary=272, objective=objective).row(record)


def learnt(labels: Any) -> str:
    return str(TOKENIZER.decode([label for label in labels if label != IGNORE]))


def test_a_pair_is_two_documents_of_which_the_answers_are_learnt() -> None:
    tokens = row({"prompt": "Say: ", "chosen": "yes", "rejected": "no"})
    (chosen, chosen_labels), (rejected, rejected_labels) = tokens.documents
    assert TOKENIZER.decode(chosen) == "Say: yes<|end|>" and TOKENIZER.decode(rejected) == "Say: no<|end|>"
    assert learnt(chosen_labels) == "yes<|end|>" and learnt(rejected_labels) == "no<|end|>"
    assert tokens.sample(1).loss_tokens == 4 + 3 and tokens.part(0, 3) == tokens


def test_conversations_are_rendered_and_may_share_their_prompt_silently() -> None:
    asked = TALK["prompt"]
    whole = {"chosen": asked + TALK["chosen"], "rejected": asked + TALK["rejected"]}
    assert row(TALK) == row(whole)
    (_, labels), (_, other) = row(TALK).documents
    assert learnt(labels) == "good<|end|>" and learnt(other) == "bad<|end|>"


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"prompt": "a", "chosen": "b"}, "no `rejected`; its keys are chosen, prompt"),
        ({"messages": []}, "no `chosen`; its keys are messages"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
        ({"chosen": "b", "rejected": "c"}, "texts without a `prompt`"),
        ({**TALK, "chosen": "b"}, "`chosen` must be a list"),
        ({"prompt": "a", "chosen": "b", "rejected": ["c"]}, "`rejected` must be a text"),
        ({"chosen": TALK["chosen"], "rejected": TALK["rejected"]}, "begin with other messages"),
    ],
)
def test_a_bad_pair_is_told(record: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        row(record)


def test_an_answer_without_a_token_to_learn_is_no_half_of_a_pair() -> None:
    tokens = row({"prompt": "q", "chosen": "a", "rejected": ""})
    assert tokens.documents[1][1][-1] != IGNORE, "the token that ends it is learned"
    with pytest.raises(ValueError, match="`rejected` has no token to learn"):
        row({"prompt": "", "chosen": "a", "rejected": ""})


def test_a_prompt_ends_where_an_answer_begins() -> None:
    tokens = row({"prompt": TALK["prompt"], "solution": 4}, "grpo")
    assert TOKENIZER.decode(tokens.input_ids) == "<|user|>q<|end|><|assistant|>"
    assert TOKENIZER.decode(row({"prompt": "2 + 2 ="}, "grpo").input_ids) == "2 + 2 ="
    with pytest.raises(ValueError, match="a row of objective grpo has `prompt`; its keys are messages"):
        row({"messages": TALK["prompt"]}, "grpo")
    with pytest.raises(ValueError, match="`prompt` must be a list"):
        row({"prompt": 4}, "grpo")


def test_an_advantage_is_measured_in_the_spread_of_its_group() -> None:
    from trainer.objectives.grpo import advantages_of

    assert advantages_of([1.0, 0.0, 5.0, 5.0], 2) == pytest.approx([0.70701, -0.70701, 0, 0], abs=1e-4)


def test_a_cache_gives_pairs_back(tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    demo.write_pairs(data, count=5)
    with open(data, "a") as file:
        file.write(json.dumps({"prompt": "a"}) + "\n")

    def read(**options: Any) -> Records:
        return Records(
            data, TOKENIZER, vocabulary=272, capacity=400, bad_records="skip", objective="dpo", **options
        )

    plain, written = read(), read(cache=tmp_path / "tokens", write_cache=True)
    again = read(cache=tmp_path / "tokens")
    assert len(plain) == 5 and plain.digest == written.digest == again.digest
    assert [again[i] for i in range(5)] == [plain[i] for i in range(5)]
    assert all(again[i].second for i in range(5))
    # the same file is other rows for another objective
    with pytest.raises(ValueError, match="no usable record"):
        Records(data, TOKENIZER, vocabulary=272, capacity=400, bad_records="skip", objective="pretrain")


def test_pairs_are_dropped_whole_or_not_at_all(tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    demo.write_pairs(data, count=20)
    told: list[str] = []
    kept = Records(
        data, TOKENIZER, vocabulary=272, capacity=120, objective="dpo", over_long="drop", report=told.append
    )
    assert 0 < len(kept) < 20 and len(told) == 20 - len(kept)
    with pytest.raises(ValueError, match="cannot be cut; give over-long fatal or drop, not truncate"):
        TrainConfig(objective="dpo", over_long="truncate")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"objective": "dpo", "train_on": "all"}, "learns from answers alone"),
        ({"objective": "dpo", "dpo_beta": 0}, "dpo-beta must be above 0"),
        ({"objective": "ppo"}, "objective must be one of sft, pretrain, dpo, grpo"),
        ({"objective": "dpo", "dpo_loss": "hinge"}, "dpo-loss must be one of"),
    ],
)
def test_options_that_contradict_each_other(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TrainConfig(**values)
    assert TrainConfig(dpo_loss="ipo").without_effect() == ["dpo-loss: no effect without --objective dpo"]


def test_updates_on_the_same_answers_are_steps_of_their_own(tmp_path: Path) -> None:
    demo.write_prompts(tmp_path / "prompts.jsonl", count=9)
    values: dict[str, Any] = {
        "objective": "grpo", "reward": "trainer.demo:reward", "data_path": str(tmp_path / "prompts.jsonl"), "batch_size": 4,
        "grpo_iterations": 2, "output_dir": str(tmp_path / "out"),
    }  # fmt: skip

    def updates(**more: Any) -> list[tuple[int, int]]:
        config = TrainConfig(**values, **more)
        return [(s.samples, s.update) for s in open_data(config, TOKENIZER, vocabulary=272, world=1).steps]

    assert updates() == [(4, 0), (4, 1), (4, 0), (4, 1), (1, 0), (1, 1)], "one pass over the prompts"
    assert updates(max_steps=3) == [(4, 0), (4, 1), (4, 0)], "a step is an update"
