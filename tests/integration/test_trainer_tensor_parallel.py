"""FSDP2 and tensor parallelism on four ranks: what four ranks without it train, compiled block by block; what
does not fit is one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.test_trainer_resume import exact, metrics
from tests.warm import Warm
from trainer import demo
from trainer.config import TrainConfig
from trainer.preflight import check

RANKS = 4


class Lab:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        demo.config(num_hidden_layers=2, hidden_size=32, intermediate_size=64).save_pretrained(
            directory / "model"
        )
        demo.tokenizer().save_pretrained(directory / "model")
        demo.write_data(directory / "data.jsonl", count=40)
        demo.write_pairs(directory / "pairs.jsonl", count=40)

    def config(self, name: str, **values: Any) -> dict[str, Any]:
        return {
            "model_name_or_path": str(self.directory / "model"), "random_init": True, "data_path": str(self.directory / "data.jsonl"),
            "device": "cpu", "max_tokens_per_gpu": 512, "batch_size": 8, "max_steps": 4, "learning_rate": 1e-2, "loss_chunks": 2,
            "train_dtype": "float64", "compile_backend": "eager", "export": False, "output_dir": str(self.directory / name), **values,
        }  # fmt: skip

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return metrics(self.directory / name)


_TRAINED = pytest.mark.everything("90 s: four ranks that compile; the check of the same blocks stays")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("tensor"))


@pytest.fixture(scope="module")
def trained(lab: Lab, warm: Warm) -> Lab:
    """Four ranks: whole blocks, split ones, and these again from a checkpoint."""
    last = {"checkpoint_every": 2, "export": True}
    split = lab.config("split", tensor_parallel=2, compile_scope="block", compile_backend="aot_eager", **last)
    pairs = {"objective": "dpo", "data_path": str(lab.directory / "pairs.jsonl"), "validation_split": 0.2}
    runs = [
        lab.config("plain", **last),
        lab.config("pairs", **pairs),
        lab.config("split-pairs", tensor_parallel=2, compile_scope="block+loss", **pairs),
        split,
        {
            **split,
            "output_dir": str(lab.directory / "again"),
            "resume": str(lab.directory / "split/checkpoints/step-00000002"),
        },
    ]
    file = lab.directory / "runs.json"
    file.write_text(json.dumps(runs))
    warm.run(Path(__file__).with_name("resume_worker.py"), str(file), ranks=RANKS, cpu=900)
    return lab


@_TRAINED
def test_split_blocks_train_as_whole_ones(trained: Lab) -> None:
    plain, split = trained.metrics("plain"), trained.metrics("split")
    for a, b in zip(split, plain, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-10)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-10)
    assert [r["graphs"] for r in split] == [1, 0, 0, 0] and not any(r["recompiles"] for r in split)
    assert len({n for r in split for micro in r["lengths"] for n in micro}) >= 3
    assert all(len(micro) == 2 for r in split for micro in r["lengths"]), (
        "two ranks of four have rows of their own"
    )


@_TRAINED
def test_pairs_of_answers_are_learnt_by_split_blocks_too(trained: Lab) -> None:
    plain, split = trained.metrics("pairs"), trained.metrics("split-pairs")
    for a, b in zip(split, plain, strict=True):
        keys = [key for key in ("loss", "grad_norm", "margin", "val_loss") if b.get(key) is not None]
        assert {"loss", "grad_norm", "margin"} <= set(keys)
        for key in keys:
            assert a[key] == pytest.approx(b[key], rel=1e-9, abs=1e-12), (key, a["step"])
    assert plain[-1]["val_loss"] > 0
    assert abs(split[0]["margin"]) < 1e-9 < split[3]["margin"], (
        "the reference is the policy before the first step"
    )
    assert [r["graphs"] for r in split] == [3, 0, 0, 0] and not any(r["recompiles"] for r in split)


@_TRAINED
def test_resuming_and_the_export_are_those_of_whole_blocks(trained: Lab) -> None:
    from transformers import AutoModelForCausalLM

    lab = trained
    assert [exact(r) for r in lab.metrics("again")[-2:]] == [exact(r) for r in lab.metrics("split")[-2:]]
    split, plain = (
        AutoModelForCausalLM.from_pretrained(lab.directory / name / "hf").state_dict()
        for name in ("split", "plain")
    )
    assert split.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.allclose(split[name], value, atol=1e-6), name


def test_the_check_builds_the_same_blocks(lab: Lab) -> None:
    config = TrainConfig.from_mapping(lab.config("split", tensor_parallel=2, compile_scope="block"))
    report = check(config, world=RANKS, verify=False).to_dict()
    assert report["verdict"] == "viable" and len(report["compiles"]) == 1
    assert (report["subject"]["world_size"], report["subject"]["tensor_parallel"]) == (RANKS, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "lora"}, "tensor-parallel splits the layers of the plain model; method lora has others"),
        ({"objective": "grpo"}, "tensor-parallel splits blocks over ranks, and objective grpo trains in one"),
        (
            {"compile_model": True, "ac": "full"},
            "ac full inside of a compiled block does not go with tensor-parallel",
        ),
        ({"compile_scope": "model"}, "compile-scope model has one region over all"),
        ({"compile_plan": "plan.json"}, "a compile plan knows nothing of tensor-parallel"),
        ({"tensor_parallel": 0}, "tensor-parallel must be at least 1"),
    ],
)
def test_what_does_not_go_with_it_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig.from_mapping({"demo": True, "tensor_parallel": 2, **values})
