"""Blocks, their kinds, and configurations cut to fewer layers."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from cftdiag.recipe import (
    auto_layers,
    block_groups,
    build_model,
    find_blocks,
    load_config,
    select_layers,
    truncate,
)
from cftdiag.recipe.layers import auto_selection
from cftdiag.recipe.stacks import stacks
from cftdiag.torch_private.wrappers import strip

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
}  # fmt: skip
GEMMA3 = SMALL | {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 16}
MOE = SMALL | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GEMMA4 = SMALL | {
    "model_type": "gemma4_text", "num_hidden_layers": 10, "num_kv_shared_layers": 4, "global_head_dim": 32, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "ssm_state_size": 16, "n_groups": 1,
}  # fmt: skip


class Part(torch.nn.Module):
    """A module of the model's own with a module inside, as an expert is."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(4, 4)


class Layer(torch.nn.Module):
    """A block of two parts, and a list inside."""

    def __init__(self):
        super().__init__()
        self.attention, self.experts = Part(), torch.nn.ModuleList(Part() for _ in range(5))


class Other(Layer):
    """A block of another class."""


class Stage(torch.nn.Module):
    """What a hierarchical model repeats: a list of whole blocks, and something between."""

    def __init__(self, depth):
        super().__init__()
        self.blocks, self.down = torch.nn.Sequential(*(Layer() for _ in range(depth))), torch.nn.Linear(4, 4)


class TwoPartLayer(torch.nn.Module):
    """A block whose own list holds parts of different classes, as T5's does."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ModuleList([Layer(), Other()])


class Model(torch.nn.Module):
    """Any modules, by name."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def row(cls, count, *args):
    return torch.nn.ModuleList(cls(*args) for _ in range(count))


def names(model, globs=None):
    return [fqn for fqn, _ in find_blocks(model, globs)]


def two():
    return Model(vision=row(Layer, 2), text=row(Layer, 3), heads=torch.nn.ModuleList([torch.nn.Linear(4, 4)]))


def test_every_stack_by_default_and_globs_for_some():
    model = two()
    every = ["vision.0", "vision.1", "text.0", "text.1", "text.2"]
    assert names(model) == every
    assert names(model, ["text.*"]) == every[2:]
    assert names(model, ["text.[01]"]) == ["text.0", "text.1"]
    with pytest.raises(ValueError, match=r"no module matches --blocks 'audio\.\*'"):
        find_blocks(model, ["text.*", "audio.*"])
    with pytest.raises(ValueError, match="Linear has no repeated blocks"):
        find_blocks(torch.nn.Linear(2, 2))


def test_what_is_a_stack():
    # the experts of a block are part of it; a stage's blocks are blocks; a list of parts is not a stage
    stages = Model(stages=torch.nn.ModuleList(Stage(n) for n in (2, 3)))
    assert list(stacks(stages)) == ["stages.0.blocks", "stages.1.blocks"]
    assert list(stacks(Model(block=row(TwoPartLayer, 2)))) == ["block"]
    # a layer that is itself a list, with parts that are absent
    nested = torch.nn.ModuleList(
        torch.nn.ModuleList([torch.nn.LayerNorm(4), Layer(), None]) for _ in range(2)
    )
    assert names(Model(layers=nested, opt=torch.nn.ModuleList([None, None]))) == ["layers.0.1", "layers.1.1"]
    # without any ModuleList: a Sequential, else what occurs more than once
    assert names(Model(blocks=torch.nn.Sequential(Layer(), Layer()))) == ["blocks.0", "blocks.1"]
    assert names(torch.nn.Sequential(torch.nn.Linear(4, 4), Layer(), Layer())) == ["1", "2"]
    assert names(Model(first=Part(), second=Part(), head=torch.nn.Linear(4, 4))) == ["first", "second"]
    # plain modules of torch.nn where there is nothing better
    assert names(Model(layers=torch.nn.ModuleList([torch.nn.Linear(4, 4)] * 2))) == ["layers.0"]


def test_names_have_no_wrappers():
    assert strip("model._orig_mod.layers.3._checkpoint_wrapped_module") == "model.layers.3"
    assert strip("_orig_mod") == "" and strip("module.layers") == "module.layers"
    model = two()
    model.text[1] = checkpoint_wrapper(model.text[1])
    assert names(model)[2:] == ["text.0", "text.1", "text.2"]
    assert [g.fqns for g in block_groups(model)] == [tuple(names(model))]
    assert names(torch.compile(model), ["text.1"]) == ["text.1"]


def labels(config):
    return [(g.label, len(g.fqns)) for g in block_groups(build_model(config))]


def test_kinds_by_layer_type():
    assert labels(GEMMA3) == [
        ("Gemma3DecoderLayer[sliding_attention]", 10),
        ("Gemma3DecoderLayer[full_attention]", 2),
    ]


def test_kinds_by_experts():
    expected = [("Qwen3MoeDecoderLayer[Qwen3MoeSparseMoeBlock]", 4), ("Qwen3MoeDecoderLayer[Qwen3MoeMLP]", 2)]
    assert labels(MOE | {"mlp_only_layers": [1, 4]}) == expected
    assert labels(MOE) == [("Qwen3MoeDecoderLayer", 6)]


def test_kinds_by_parameter_shapes_and_flags():
    class Block(torch.nn.Module):
        def __init__(self, width, number, causal=True):
            super().__init__()
            self.lin, self.layer_idx, self.scale, self.causal = (
                torch.nn.Linear(4, width),
                number,
                number / 2,
                causal,
            )

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Block(4, 0), Block(8, 1), Block(4, 2), Block(4, 3, causal=False)])
    groups = block_groups(model)
    assert [g.fqns for g in groups] == [("layers.0", "layers.2"), ("layers.1",), ("layers.3",)]
    assert len({g.label for g in groups}) == 3 and all(g.cls == "Block" for g in groups)


@pytest.mark.parametrize(
    "config, kept",
    [
        (GEMMA3, (0, 5)),
        (MOE, (0,)),
        (MOE | {"mlp_only_layers": [0, 2]}, (0, 1)),
        (NEMOTRON, (0, 1, 3)),
        (GEMMA4, (0, 4, 5, 6, 9)),
        (
            SMALL
            | {
                "model_type": "deepseek_v3",
                "num_hidden_layers": 5,
                "first_k_dense_replace": 3,
                "n_routed_experts": 8,
            },
            (0, 3),
        ),
        (
            SMALL
            | {
                "model_type": "smollm3",
                "num_hidden_layers": 8,
                "no_rope_layer_interval": 4,
                "pad_token_id": 0,
            },
            (0, 3),
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_auto_keeps_one_layer_of_each_kind(config, kept):
    config = load_config(config)
    assert auto_selection(config) == kept and auto_layers(config) == len(kept)
    whole, cut = block_groups(build_model(config)), block_groups(build_model(config, layers="auto"))
    assert [g.label for g in cut] == [g.label for g in whole]
    assert [len(g.fqns) for g in cut] == [1] * len(cut)


def test_a_rule_of_the_layer_number_keeps_the_prefix():
    """Every third layer is a mixture of experts; no list says so, so the numbers must stay."""
    config = load_config(MOE | {"decoder_sparse_step": 3})
    assert auto_selection(config) == (0, 1, 2)


def test_truncate_and_select():
    config = load_config(GEMMA3)
    assert truncate(config, 3).layer_types == ["sliding_attention"] * 3
    assert truncate(config, 50).num_hidden_layers == 12 == config.num_hidden_layers
    assert select_layers(config, [5, 6]).layer_types == ["full_attention", "sliding_attention"]
    assert select_layers(load_config(MOE | {"mlp_only_layers": [1, 4]}), [0, 4, 5]).mlp_only_layers == [1]
    with pytest.raises(ValueError, match="not among the 12 layers"):
        select_layers(config, [12])
