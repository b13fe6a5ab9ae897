"""Every method that changes the model: the same losses under each compile scope and on one rank or two, no
recompile, resuming bit for bit, and exports that transformers and peft load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from tests.integration.test_trainer_resume import exact, metrics, parameters, run_all
from tests.integration.trained_logits import ids, trained_logits
from tests.warm import Warm
from trainer import demo
from trainer.export import run

#: Two targets of seven: unpacking 4 bits is twenty operations, and each is compiled.
TARGETS = ("q_proj", "up_proj")
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora", "lora_rank": 4, "lora_target_patterns": TARGETS},
    "qlora": {"method": "qlora", "lora_rank": 4, "lora_target_patterns": TARGETS, "qlora_block_size": 32},
    "qat": {"method": "qat", "qat_target_patterns": TARGETS, "train_dtype": "float32"},
}
GRAPHS = {"none": 0, "block": 1, "loss": 1, "block+loss": 2, "model": 1, "model+loss": 1}
_MORE = pytest.mark.everything(
    "20 s each on two ranks; 4 bits by block, which is the most that is compiled, and every method's export stay"
)
CASES = [
    pytest.param(method, scope, marks=() if (method, scope) == ("qlora", "block") else _MORE)
    for method in METHODS
    for scope in GRAPHS
    if scope != "none"
]
STEPS = 4


class Lab:
    """A model with weights, its data, and what two ranks made of them."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.directory, self.model = directory, directory / "model"
        shape = dict(
            num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1
        )  # fmt: skip
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(demo.config(**shape)).save_pretrained(self.model)
        demo.tokenizer().save_pretrained(self.model)
        demo.write_data(directory / "data.jsonl", count=24)

    def config(self, name: str, **values: Any) -> dict[str, Any]:
        return {
            "model_name_or_path": str(self.model), "data_path": str(self.directory / "data.jsonl"), "device": "cpu",
            "max_tokens_per_gpu": 512, "batch_size": 6, "max_steps": STEPS, "learning_rate": 1e-2, "loss_chunks": 2,
            "train_dtype": "float64", "compile_backend": "eager", "export": False, "output_dir": str(self.directory / name), **values,
        }  # fmt: skip

    @property
    def watched(self) -> dict[str, Any]:
        """Options of a run with checkpoints and validations."""
        data = str(self.directory / "data.jsonl")
        return {"checkpoint_every": 2, "validate_every": 2, "validation_path": data}

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return metrics(self.directory / name)


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> set[tuple[str, str]]:
    """(method, scope) of the tests of this session that need two ranks."""
    return {(p["method"], p["scope"]) for p in parameters(request) if {"method", "scope"} <= p.keys()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, warm: Warm, asked: set[tuple[str, str]]) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("methods"))
    runs = []
    for method, options in METHODS.items():
        runs.append(lab.config(f"{method}-none", **{**lab.watched, "export": True}, **options))
        runs += [
            lab.config(
                f"{method}-{scope}",
                compile_scope=scope,
                **(lab.watched if scope == "block" else {}),
                **options,
            )
            for scope in GRAPHS
            if (method, scope) in asked
        ]
    run_all(warm, lab.directory, runs)
    again = [
        lab.config(
            f"{method}-again",
            compile_scope="block",
            resume=str(lab.directory / f"{method}-block" / "checkpoints" / "step-00000002"),
            **lab.watched,
            **options,
        )
        for method, options in METHODS.items()
        if (method, "block") in asked
    ]
    run_all(warm, lab.directory, again)
    return lab


#: Of losses and gradients on one rank and on two: in float32 some inputs round to the other of two neighbours.
TOLERANCE = {"lora": 1e-8, "qlora": 1e-8, "qat": 1e-3}


def _same(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> None:
    for x, y in zip(a, b, strict=True):
        for key in ("loss", "grad_norm", "val_loss"):
            if key in x and key in y:
                assert x[key] == pytest.approx(y[key], rel=tolerance), (key, x["step"])


@pytest.mark.parametrize(("method", "scope"), CASES)
def test_two_ranks_train_compiled_as_eager_without_a_recompile(lab: Lab, method: str, scope: str) -> None:
    compiled, eager = lab.metrics(f"{method}-{scope}"), lab.metrics(f"{method}-none")
    _same(compiled, eager, 1e-8 if method != "qat" else 1e-6)
    assert [r["graphs"] for r in compiled] == [GRAPHS[scope], *[0] * (STEPS - 1)]
    assert not any(r["recompiles"] for r in compiled)
    assert len({n for r in compiled for micro in r["lengths"] for n in micro}) >= 3
    assert compiled[-1]["loss"] < compiled[0]["loss"] - 0.03, "it learns"


@pytest.mark.parametrize("method", ["qlora", *(pytest.param(name, marks=_MORE) for name in ("lora", "qat"))])
def test_one_rank_trains_as_two(fresh_dynamo: None, lab: Lab, tmp_path: Path, method: str) -> None:
    trainer.run_training(
        lab.config(f"{method}-one", compile_scope="block", max_tokens_per_gpu=1024, **METHODS[method])
    )
    one = lab.metrics(f"{method}-one")
    _same(one, lab.metrics(f"{method}-none"), TOLERANCE[method])
    assert [r["graphs"] for r in one] == [1, 0, 0, 0] and not any(r["recompiles"] for r in one)


@pytest.mark.parametrize("method", ["qlora", *(pytest.param(name, marks=_MORE) for name in ("lora", "qat"))])
def test_resuming_is_bit_for_bit(lab: Lab, method: str) -> None:
    went_on, straight = lab.metrics(f"{method}-again"), lab.metrics(f"{method}-block")
    assert [exact(r) for r in went_on[-2:]] == [exact(r) for r in straight[-2:]]
    assert [r["step"] for r in went_on[-2:]] == [3, 4]


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_exported_model_gives_the_trained_logits(lab: Lab, method: str) -> None:
    from transformers import AutoModelForCausalLM

    out = lab.directory / f"{method}-none"
    trained = trained_logits((out / "checkpoints" / "last").resolve()).double()
    plain = AutoModelForCausalLM.from_pretrained(out / "hf").eval()
    with torch.no_grad():
        found = plain(ids()).logits.double()
        start = AutoModelForCausalLM.from_pretrained(lab.model).eval()(ids()).logits.double()
    assert (found - trained).abs().max() / trained.abs().max() < 2e-5
    assert (start - trained).abs().max() / trained.abs().max() > 1e-2, "training changed it"


def test_peft_merges_the_adapter_as_the_export_does(lab: Lab, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    out = lab.directory / "lora-none"
    base = AutoModelForCausalLM.from_pretrained(lab.model)
    merged = PeftModel.from_pretrained(base, out / "adapter").merge_and_unload().state_dict()
    exported = AutoModelForCausalLM.from_pretrained(out / "hf").state_dict()
    assert merged.keys() == exported.keys()
    for name, value in exported.items():
        assert (merged[name] - value).abs().max() < 1e-6, name
    again = tmp_path / "adapter"
    assert run([str((out / "checkpoints" / "last").resolve()), str(again), "--as", "adapter"]) == 0
    tensors = "adapter_model.safetensors"
    assert (again / tensors).read_bytes() == (out / "adapter" / tensors).read_bytes()


def test_the_adapter_beside_4_bits_is_that_of_the_dequantised_model(lab: Lab, tmp_path: Path) -> None:
    """What the export merged is base in 4 bits plus adapter: without the adapter's product it is the base."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from trainer.methods.qlora import PACKED, pack, unpack

    out = lab.directory / "qlora-none"
    exported = AutoModelForCausalLM.from_pretrained(out / "hf").state_dict()
    adapter = load_file(out / "adapter" / "adapter_model.safetensors")
    start = AutoModelForCausalLM.from_pretrained(lab.model, dtype=torch.float64).state_dict()
    name = "model.layers.1.mlp.up_proj"
    product = (
        adapter[f"base_model.model.{name}.lora_B.weight"] @ adapter[f"base_model.model.{name}.lora_A.weight"]
    )
    parts = pack(start[f"{name}.weight"], 32)
    base = unpack(tuple(parts[part] for part in PACKED), start[f"{name}.weight"].shape)
    found = exported[f"{name}.weight"].double() - 32 / 4 * product
    assert (found - base).abs().max() < 1e-6
    relative = (base - start[f"{name}.weight"]).norm() / base.norm()
    assert 0.05 < relative < 0.12, "4 bits keep about nine tenths"


def test_the_quantised_export_computes_what_was_trained_and_what_torchao_prepares(lab: Lab) -> None:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig
    from transformers import AutoModelForCausalLM

    out = lab.directory / "qat-none"
    quantised = AutoModelForCausalLM.from_pretrained(out / "quantized").eval()
    layer = quantised.model.layers[0]
    kinds = [
        type(m.weight).__name__ for m in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.mlp.up_proj)
    ]
    assert kinds == ["IntxUnpackedToInt8Tensor", "Parameter", "IntxUnpackedToInt8Tensor"]
    plain = AutoModelForCausalLM.from_pretrained(out / "hf").eval()
    with torch.no_grad():
        rounded, unrounded = quantised(ids()).logits, plain(ids()).logits
        scheme = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        )
        named = lambda _module, name: name.endswith(TARGETS)  # noqa: E731
        quantize_(plain, QATConfig(scheme, step="prepare"), filter_fn=named)
        prepared = plain(ids()).logits
    trained = trained_logits((out / "checkpoints" / "last").resolve()).double()
    assert (rounded - prepared).abs().max() < 1e-6
    assert (rounded - trained).abs().max() / trained.abs().max() < 1e-2
    assert (rounded - unrounded).abs().max() / trained.abs().max() > 2e-2


@pytest.mark.parametrize("form", ["adapter", "quantized"])
def test_a_form_that_a_method_has_not_is_one_line(
    lab: Lab, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.run_training(lab.config("full", max_steps=1))
    checkpoint = (lab.directory / "full" / "checkpoints" / "last").resolve()
    assert run([str(checkpoint), str(tmp_path / "x"), "--as", form]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"method full, which has no export as {form}" in error and not (tmp_path / "x").exists()
