"""Which models can be split over ranks, and what is said of the others; a world of 64 fake ranks."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from cftdiag.recipe.tensor_parallel import RowLinear, _kind, _plan, _require_heads
from trainer.methods.lora import LoRALinear

TINY: dict[str, Any] = dict(
    num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=64
)  # fmt: skip


def _model(model_type: str, **values: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**TINY, **values}))


def test_a_dense_model_is_split_by_the_plan_of_transformers() -> None:
    model = _model("llama")
    plan = _plan(model)
    assert plan["model.layers.*.self_attn.q_proj"] == "colwise"
    name = "model.layers.0.mlp.down_proj"
    assert _kind(name, model.get_submodule(name), "rowwise", 2) is RowLinear
    with pytest.raises(ValueError, match=r"does not divide the 32 x 64 weight of .*down_proj"):
        _kind(name, model.get_submodule(name), "rowwise", 3)


def test_what_cannot_be_split_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"no tensor-parallel plan for OPTForCausalLM; leave out"):
        _plan(_model("opt", ffn_dim=64))
    with pytest.raises(ValueError, match=r"--tensor-parallel 4 does not divide num_key_value_heads 2"):
        _require_heads(_model("llama"), 4)
    adapted = LoRALinear(nn.Linear(32, 64), rank=2, scale=1.0)
    with pytest.raises(
        ValueError, match=r"splits plain Linears, and layers.0.up_proj is a LoRALinear, of a method or"
    ):
        _kind("layers.0.up_proj", adapted, "colwise", 2)
    moe = _model("mixtral", num_local_experts=2)
    experts = next(name for name in _plan(moe) if name.endswith("experts"))
    module = moe.get_submodule(experts.replace("*", "0"))
    with pytest.raises(
        ValueError, match=r"splits dense layers; the plan of .*experts asks for \w+, which is not there"
    ):
        _kind(experts, module, _plan(moe)[experts], 2)
