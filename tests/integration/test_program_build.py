"""Models are built without weights, and refuse what they cannot do in one line."""

import json
import resource

import pytest
import torch

from cftdiag.fastforward import REAL, SKIPPED, status
from cftdiag.recipe import build_model, count_parameters, load_config, supported_attention

TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_4B = TINY | {
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip


def test_weightless_model_has_real_buffers_and_tied_skipped_weights():
    model, real = build_model(TINY), build_model(TINY, weights=True)
    assert all(status(p) == SKIPPED for p in model.parameters())
    assert all(status(p) == REAL for p in real.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    buffers = dict(model.named_buffers())
    assert buffers and all(
        torch.equal(buffers[name], b) and status(buffers[name]) == REAL for name, b in real.named_buffers()
    )
    assert model.training and model.config.use_cache is False
    assert next(model.parameters()).dtype == torch.bfloat16


def test_weights_are_reproducible():
    first, second = (build_model(TINY, weights=True, dtype="float32", seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_four_billion_parameters_touch_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = build_model(QWEN3_4B)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    assert sum(p.numel() for p in model.parameters()) == count_parameters(QWEN3_4B) == 4_022_468_096
    assert grown < 0.3, f"{grown} GB for 8 GB of weights"


def test_layers_and_config_object():
    config = load_config(TINY)
    assert len(build_model(config, layers=1).model.layers) == 1
    assert config.num_hidden_layers == 2  # the caller's is not changed
    assert len(build_model(config, layers="auto").model.layers) == 1
    assert len(build_model(config, layers=9).model.layers) == 2


@pytest.mark.parametrize(
    "config, options, message",
    [
        (
            TINY,
            {"attn": "flash"},
            "unknown attention 'flash' is not supported by Qwen3ForCausalLM; it supports sdpa, eager, flex_attention",
        ),
        (
            {"model_type": "gpt2", "n_layer": 1},
            {"attn": "flex_attention"},
            "GPT2LMHeadModel; it supports sdpa, eager, flash",
        ),
        (TINY, {"dtype": "int8"}, "dtype 'int8' is not one of bfloat16"),
        (TINY, {"attn": "flash_attention_2", "dtype": "float32"}, "runs in bfloat16 or float16"),
        (TINY, {"layers": 0}, "0 layers"),
        (TINY, {"layers": "few"}, "neither a number nor"),
        ({"hidden_size": 64}, {}, "has no model_type"),
        ({"model_type": "nonesuch"}, {}, "model_type 'nonesuch' is unknown"),
        (TINY | {"hidden_size": "wide"}, {}, "not a valid qwen3 configuration"),
        (TINY | {"num_hidden_layers": 0}, {"layers": "auto"}, "num_hidden_layers"),
        (TINY | {"num_hidden_layers": 0}, {}, "num_hidden_layers"),
        (TINY | {"hidden_size": -1}, {}, "no qwen3 model can be built"),
        ({"model_type": "t5"}, {}, "no causal language model"),
    ],
)
def test_refusals_are_one_line(config, options, message):
    with pytest.raises(ValueError) as refusal:
        build_model(config, **options)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_configurations_from_files(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    assert load_config(tmp_path).hidden_size == load_config(str(file)).hidden_size == 64
    for text, message in (("{", "not valid JSON"), ("[1]", "a JSON list"), ("{}", "no model_type")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_config(tmp_path)
    with pytest.raises(ValueError, match="cannot read"):
        load_config(tmp_path / "missing")


def test_flash_attention_needs_its_head_dimension():
    assert "flash_attention_2" in supported_attention(load_config(TINY | {"head_dim": 256}))
    assert "flash_attention_2" not in supported_attention(load_config(TINY | {"head_dim": 320}))
    assert "flash_attention_2" not in supported_attention(
        load_config({"model_type": "gemma4_text", "num_hidden_layers": 6})
    )
