"""The check of a configuration and the run of it agree; what would break, or compute another loss, stops the
run before step 0.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from trainer import demo
from trainer.cli import main
from trainer.config import TrainConfig
from trainer.loss_check import compare_loss
from trainer.preflight import check
from trainer.program import lookup_backend

SHAPE: dict[str, Any] = dict(
    num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    demo.config(**SHAPE).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    demo.write_data(directory / "data.jsonl", count=24)
    return directory


def _config(tiny: Path, out: Path, **values: Any) -> TrainConfig:
    base = dict(
        model_name_or_path=str(tiny), random_init=True, data_path=str(tiny / "data.jsonl"), device="cpu", max_tokens_per_gpu=512, batch_size=6,
        max_steps=3, export=False, output_dir=str(out), compile_backend="aot_eager", loss_chunks=2,
    )  # fmt: skip
    return TrainConfig(**{**base, **values})


def _records(config: TrainConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(config.output_dir) / "metrics.jsonl").read_text().splitlines()]


BLOCKS = ["model.layers.0", "model.layers.1"]
_SCOPE = pytest.mark.everything("15 s each; block by block and model with loss stay")


@pytest.mark.parametrize(
    ("values", "regions", "viable"),
    [
        pytest.param(
            {"osft": True, "compile_scope": "block+loss"}, [*BLOCKS, "cross_entropy"], True, marks=_SCOPE
        ),
        (
            {"compile_scope": "block", "dynamic": "auto", "ac": "full", "compile_backend": "eager"},
            BLOCKS,
            False,
        ),
        pytest.param(
            {"compile_scope": "model", "ac": "full", "compile_backend": "eager"},
            ["model"],
            True,
            marks=_SCOPE,
        ),
        ({"compile_scope": "model+loss", "compile_backend": "eager"}, ["step"], True),
    ],
    ids=["block+loss", "block-auto", "model", "model+loss"],
)
def test_the_check_says_what_the_run_does(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, values: dict[str, Any], regions: list[str], viable: bool
) -> None:
    config = _config(tiny, tmp_path, **values)
    report = check(config, world=1, verify=False).to_dict()
    trainer.run_training(config)
    ran = _records(config)
    assert [b["fqn"] for b in report["blocks"]] == regions
    assert all(b["fullgraph"] for b in report["blocks"])
    assert len(report["compiles"]) == sum(r["graphs"] for r in ran)
    assert sum(b["recompiles"] for b in report["blocks"]) == sum(len(r["recompiles"]) for r in ran)
    assert report["verdict"] == ("viable" if viable else "viable_with_recompiles")
    assert report["compiles"][0]["length"] == ran[0]["lengths"][0][0]
    assert (report["subject"]["ac"], report["subject"]["compile_scope"]) == (config.ac, config.scope)


def test_flex_attention_is_checked_where_it_cannot_be_trained(tiny: Path, tmp_path: Path) -> None:
    config = _config(tiny, tmp_path, attn="flex_attention", compile_model=True, compile_backend="eager")
    report = check(config, world=1, verify=False).to_dict()
    assert report["verdict"] == "viable" and len(report["compiles"]) == 1, "three lengths, one graph"
    assert report["subject"]["name"] == str(tiny) and list(tmp_path.iterdir()) == [], "nothing written"
    with pytest.raises(ValueError, match="flex_attention has no backward on a CPU"):
        trainer.run_training(config)


def _with_config(tiny: Path, directory: Path, **values: Any) -> Path:
    from transformers import AutoConfig

    base = {
        "vocab_size": 272,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 3,
        "max_position_embeddings": 4096,
    }
    AutoConfig.for_model(values.pop("model_type"), **{**SHAPE, **base, **values}).save_pretrained(directory)
    demo.tokenizer().save_pretrained(directory)
    return directory


@pytest.mark.everything("30 s; unit/test_trainer_preflight_rules.py holds what a break leads to")
def test_a_block_that_breaks_stops_the_run_before_the_first_step(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _with_config(
        tiny, tmp_path / "m", model_type="mixtral", num_local_experts=4, num_experts_per_tok=2
    )
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"experts_implementation": "eager"}))
    out = tmp_path / "out"
    arguments = [
        "--model-name-or-path",
        str(model),
        "--random-init",
        "--data-path",
        str(tiny / "data.jsonl"),
        "--device",
        "cpu",
        "--compile-model",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--max-tokens-per-gpu", "512", "--preflight", "--output-dir", str(out)])
    assert ended.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert (
        "blocking findings, the first: graph_break" in line and "model.layers.*" in line and "mixtral" in line
    )
    assert not (out / "metrics.jsonl").exists() and not (out / "run").exists()


@pytest.mark.everything("40 s; a break in a block and the command line stay")
def test_a_model_that_breaks_outside_of_its_blocks_stops_a_whole_model_scope(
    tiny: Path, tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = _with_config(tiny, tmp_path / "m", model_type="llama", rope_parameters=rope)
    with pytest.raises(
        ValueError, match=r"preflight: .* graph_break .* in model at .*modeling_rope_utils.py"
    ):
        trainer.run_training(
            _config(
                model,
                tmp_path / "out",
                data_path=str(tiny / "data.jsonl"),
                compile_scope="model",
                preflight=True,
            )
        )


@pytest.fixture(scope="module")
def wrong_backends() -> Iterator[None]:
    """Backends whose graphs compute 5% more, or right values with twice the gradient."""
    from torch._dynamo import register_backend

    def change(graph: Any, each: Any) -> Any:
        return lambda *args: tuple(
            each(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in graph(*args)
        )

    register_backend(lambda graph, inputs: change(graph, lambda x: x * 1.05), name="five_percent_more")
    register_backend(
        lambda graph, inputs: change(graph, lambda x: 2 * x - x.detach()), name="twice_the_gradient"
    )
    yield


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("five_percent_more", "the compiled loss differs from eager's by 5.0%"),
        ("twice_the_gradient", "the compiled gradient of the hidden states differs from eager's by 100.0%"),
    ],
)
@pytest.mark.parametrize("scope", ["loss", "model+loss"])
def test_a_compiled_loss_that_is_another_stops_the_run(
    fresh_dynamo: None,
    wrong_backends: None,
    tiny: Path,
    tmp_path: Path,
    scope: str,
    backend: str,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=f"preflight: {message} .backend {backend}."):
        trainer.run_training(
            _config(tiny, tmp_path, compile_scope=scope, compile_backend=backend, preflight=True)
        )
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("scope", ["block", "loss", "block+loss", "model+loss"])
@pytest.mark.parametrize(
    "model", [{}, {"final_logit_softcapping": 5.0, "logits_scaling": 4.0}], ids=["plain", "capped"]
)
def test_a_right_loss_passes(fresh_dynamo: None, scope: str, model: dict[str, Any]) -> None:
    config = TrainConfig(compile_scope=scope, loss_chunks=2)
    model_config = types.SimpleNamespace(vocab_size=50, **model)
    for dtype in (torch.float32, torch.bfloat16):
        assert (
            compare_loss(
                config, model_config, lookup_backend("aot_eager"), device=torch.device("cpu"), dtype=dtype
            )
            == []
        )


def test_a_backend_that_raises_is_told(fresh_dynamo: None) -> None:
    def raising(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such operator")

    [found] = compare_loss(
        TrainConfig(compile_scope="loss"),
        types.SimpleNamespace(vocab_size=50),
        raising,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    assert found.startswith("the compiled loss raises") and "no such operator" in found


def test_what_the_preflight_compiles_is_not_counted_as_the_runs(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tiny, tmp_path, compile_scope="loss", preflight=True)
    trainer.run_training(config)
    assert [r["graphs"] for r in _records(config)] == [1, 0, 0]
    assert "preflight: viable" in capsys.readouterr().err


def test_a_request_that_compiles_nothing_is_one_line_and_exit_code_2(
    fresh_dynamo: None, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--model-name-or-path",
        str(tiny),
        "--random-init",
        "--data-path",
        str(tiny / "data.jsonl"),
        "--device",
        "cpu",
    ]
    torch.compiler.set_stance("force_eager")
    try:
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    *arguments,
                    "--compile-model",
                    "--compile-backend",
                    "eager",
                    "--max-tokens-per-gpu",
                    "512",
                    "--output-dir",
                    str(tmp_path),
                ]
            )
    finally:
        torch.compiler.set_stance("default")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(
        "error: compile scope block: a step ran and nothing was compiled"
    )
    assert "Traceback" not in error
