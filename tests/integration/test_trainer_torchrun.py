"""The trainer on two ranks: one start, many claims; and what torchrun shows of a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cftdiag.monitor import is_run
from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]


def torchrun(*arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *arguments,
    ]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, 64 wide, beside a tied twin, with data."""
    from transformers import AutoConfig

    from trainer import demo

    directory = tmp_path_factory.mktemp("model")
    for name, tie in (("tiny", False), ("tiny_tied", True)):
        demo.config(num_hidden_layers=2, tie_word_embeddings=tie).save_pretrained(directory / name)
        demo.tokenizer().save_pretrained(directory / name)
    gpt2 = AutoConfig.for_model(
        "gpt2",
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=512,
        vocab_size=272,
        bos_token_id=0,
        eos_token_id=3,
    )
    gpt2.save_pretrained(directory / "tiny_gpt2")
    demo.tokenizer().save_pretrained(directory / "tiny_gpt2")
    demo.write_data(directory / "data.jsonl", count=60)
    return directory


@pytest.fixture(scope="module")
def two(tiny: Path, tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> dict[str, Any]:
    """What the worker found on two ranks, with torchrun's variables."""
    out = tmp_path_factory.mktemp("out")
    worker = Path(__file__).with_name("trainer_worker.py")
    warm.run(worker, str(tiny / "tiny"), str(tiny / "data.jsonl"), str(out), ranks=2, cpu=900)
    return {**json.loads((out / "results.json").read_text()), "out": out}


# transformers computes norms and rotary angles in float32 even in a float64 model, so that orders of
# summation show from the ninth digit on.
def _close(a: list[dict[str, Any]], b: list[dict[str, Any]], *keys: str) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        for key in keys:
            assert x[key] == pytest.approx(y[key], rel=1e-7), (key, x["step"])


def test_sharded_projection_is_the_dense_one(two: dict[str, Any]) -> None:
    found = two["projection"]
    assert found["layers"] == 14 and found["high"] == 47
    assert found["moved"] > 1e-6, (
        "nothing was projected away, the comparison would hold for a projection that does nothing"
    )
    assert max(value for key, value in found.items() if key.startswith("worst")) < 1e-14


def test_sharded_leak_sees_one_percent(two: dict[str, Any]) -> None:
    assert two["projection"]["leak"] < 1e-12
    assert two["projection"]["leak_injected"] == pytest.approx(0.01, rel=1e-3)


def test_each_weight_is_decomposed_once_and_both_ranks_work(two: dict[str, Any]) -> None:
    assert two["decompositions"] == [7, 7]


def test_tied_embeddings_stay_tied(two: dict[str, Any]) -> None:
    assert two["tied"]


def test_loading_weights_leaves_the_attention_as_it_was_chosen(two: dict[str, Any]) -> None:
    assert two["attention"] == ["sdpa", "sdpa"]


@pytest.mark.parametrize("name", ["export_osft", "export_full", "export_lora", "export_gpt2"])
def test_the_exported_model_gives_the_trained_loss_on_single_documents(
    two: dict[str, Any], name: str
) -> None:
    assert two[name]["exported"] == pytest.approx(two[name]["sharded"], rel=1e-8)
    assert two[name]["names_equal"] == (name == "export_full"), (
        "state-dict names of full fine-tuning are the plain model's, also under ac"
    )


def test_loss_and_norm_do_not_depend_on_ranks_accumulation_or_replicas(
    two: dict[str, Any], tiny: Path, tmp_path: Path
) -> None:
    import trainer

    trainer.run_training(
        {
            "model_name_or_path": str(tiny / "tiny"), "random_init": True, "data_path": str(tiny / "data.jsonl"), "train_dtype": "float64",
            "max_tokens_per_gpu": 2048, "batch_size": 8, "max_steps": 3, "learning_rate": 1e-3, "export": False, "output_dir": str(tmp_path),
            "device": "cpu",
        }
    )  # fmt: skip
    one = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (
        [len(r["lengths"]) for r in two["accumulated"]]
        > [len(r["lengths"]) for r in two["full"]]
        == [1, 1, 1]
    )
    for name in ("full", "accumulated", "hsdp"):
        _close(two[name], one, "loss", "grad_norm", "grad_norm_raw", "tokens", "loss_tokens")


def test_bfloat16_trains_near_float64(two: dict[str, Any]) -> None:
    for name, key in (("mixed", "full"), ("bf16", "osft")):
        assert [r["loss"] for r in two[name]] == pytest.approx([r["loss"] for r in two[key]][:3], rel=2e-2)
    # Factors rounded to bfloat16 are orthogonal to about its 2^-8.
    assert all(r["leak"] < 2**-7 for r in two["bf16"])


def test_compiled_osft_trains_as_eager_does(two: dict[str, Any]) -> None:
    _close(two["osft"], two["osft_compiled"][:4], "loss", "grad_norm", "grad_norm_raw")


def test_osft_stays_orthogonal_under_compile_ac_and_sharding(two: dict[str, Any]) -> None:
    last = two["resumed"][-1]
    assert last["step"] == 12 and last["leak"] < 1e-12
    assert two["osft_compiled"][9]["leak"] < 1e-12
    assert all(r["grad_norm"] <= r["grad_norm_raw"] for r in two["osft_compiled"])


def test_nothing_recompiles_over_varied_lengths(two: dict[str, Any]) -> None:
    compiled = two["osft_compiled"][:10]
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) > 5
    assert [r["graphs"] for r in compiled] == [1] + [0] * 9
    assert compiled[0]["compile_seconds"] > 0
    assert not any(r["recompiles"] for r in compiled)


def test_resuming_goes_on_where_the_checkpoint_was(two: dict[str, Any]) -> None:
    before, resumed = two["osft_compiled"], two["resumed"]
    assert [r["step"] for r in resumed] == list(range(1, 13))
    for was, now in zip(before[8:], resumed[8:10], strict=True):
        assert [was[k] for k in ("loss", "grad_norm_raw", "total_tokens")] == [
            now[k] for k in ("loss", "grad_norm_raw", "total_tokens")
        ]


def test_the_run_directory_is_the_monitors_and_names_the_settings(two: dict[str, Any]) -> None:
    run = two["out"] / "osft_compiled" / "run"
    assert is_run(run)
    assert (
        json.loads((run / "run.json").read_text())["settings"]["torch"][
            "torch._dynamo.config.specialize_float"
        ]
        is True
    )
    assert {p.name for p in (run / "events").iterdir()} == {"rank00000.jsonl", "rank00001.jsonl"}


@pytest.mark.everything("16 s by torchrun; one line of each mistake stays in unit tests, two ranks here")
def test_a_mistake_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    done = torchrun(
        "-m",
        "trainer",
        "--model-name-or-path",
        str(tmp_path),
        "--data-path",
        "none",
        "--output-dir",
        str(tmp_path),
    )
    assert done.returncode != 0
    assert done.stderr.count("error: cannot open model") == 1
    assert "trainer/loop.py" not in done.stderr
