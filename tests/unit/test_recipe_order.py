"""The recipe itself, without compiling: the order of its three steps, FSDP2's groups and precisions, and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule

from cftdiag import catalogue
from cftdiag.fastforward import SkipMode
from cftdiag.options import SCOPES
from cftdiag.recipe import (
    Program,
    TrainRecipe,
    apply_recipe,
    build_model,
    fake_mesh,
    find_blocks,
    load_config,
    make_batches,
    supported_attention,
)
from cftdiag.recipe.activation_checkpointing import save_products_and_attention
from cftdiag.recipe.fsdp import make_mesh

SIZES: dict[str, Any] = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, vocab_size=32
)  # fmt: skip
DENSE = {"model_type": "llama", **SIZES}
MIXTURE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **SIZES}
BLOCKS = [f"model.layers.{i}" for i in range(3)]


@pytest.fixture
def world() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _apply(config: dict[str, Any], recipe: TrainRecipe, mesh: Any, seen: dict[str, Any]) -> Program:
    model = build_model(config, dtype="float32")

    def compile(module: nn.Module, name: str) -> None:
        inside = list(module.modules())
        seen[name] = (isinstance(module, CheckpointWrapper), any(isinstance(m, FSDPModule) for m in inside))

    with SkipMode():
        return apply_recipe(model, find_blocks(model), recipe, compile=compile, mesh=mesh)


def _group(module: Any) -> Any:
    return module._get_fsdp_state()._fsdp_param_group


@pytest.mark.parametrize("config", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_blocks_are_checkpointed_then_compiled_then_sharded(world: None, config: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}
    program = _apply(config, TrainRecipe(ac="full"), fake_mesh(4), seen)
    assert seen == dict.fromkeys(BLOCKS, (True, False)), "checkpointed and not yet sharded when compiled"
    assert [name for name, _ in program.blocks] == BLOCKS
    for _, block in program.blocks:
        assert isinstance(block, CheckpointWrapper) and isinstance(block, FSDPModule)
        assert block.checkpoint_fn.keywords == {"use_reentrant": False, "preserve_rng_state": False}
    assert isinstance(program.model, FSDPModule)
    layers: Any = program.model.get_submodule("model.layers")
    assert [module for _, module in program.blocks] == list(layers), "the model holds the wrapped blocks"


def test_selective_uses_our_policy(world: None) -> None:
    program = _apply(DENSE, TrainRecipe(ac="selective"), None, {})
    for _, block in program.blocks:
        contexts = block.checkpoint_fn.keywords["context_fn"]
        assert contexts.args == (save_products_and_attention,)


@pytest.mark.parametrize("scope", SCOPES)
def test_each_scope_compiles_and_shards_what_it_says(world: None, scope: str) -> None:
    seen: dict[str, Any] = {}
    program = _apply(DENSE, TrainRecipe(scope=scope, ac="full"), fake_mesh(4), seen)
    expected = {
        "none": [], "block": BLOCKS, "loss": ["cross_entropy"], "block+loss": [*BLOCKS, "cross_entropy"], "model": ["model"], "model+loss": ["step"],
    }[scope]  # fmt: skip
    assert list(seen) == expected == [name for name, _ in program.regions]
    assert not any(sharded for _, sharded in seen.values())
    sharded = [name for name, module in program.blocks if isinstance(module, FSDPModule)]
    # One graph over all blocks leaves no place for a block's own hooks.
    assert sharded == ([] if scope.startswith("model") else BLOCKS)
    assert all(isinstance(block, CheckpointWrapper) for _, block in program.blocks)


@pytest.mark.parametrize(
    ("stored", "asked", "reduced"),
    [
        ("float32", "bfloat16", torch.float32),
        ("bfloat16", None, torch.float32),
        ("float32", "float64", torch.float64),
    ],
)
def test_gradients_are_summed_in_float32_or_better(
    world: None, stored: str, asked: str | None, reduced: torch.dtype
) -> None:
    model = build_model(DENSE, dtype=stored)
    with SkipMode():
        program = apply_recipe(model, find_blocks(model), TrainRecipe(dtype=asked), mesh=fake_mesh(4))
    modules: list[Any] = [program.model, *(block for _, block in program.blocks)]
    for module in modules:
        policy, group = module._get_fsdp_state()._mp_policy, _group(module)
        assert policy.param_dtype == (getattr(torch, asked) if asked else None)
        assert policy.reduce_dtype == reduced and not policy.cast_forward_inputs
        assert group.force_sum_reduction_for_comms and group.gradient_divide_factor == 1.0
    assert _group(program.model).post_forward_mesh_info is None, (
        "the root stays gathered to the end of a step"
    )
    assert all(_group(block).post_forward_mesh_info is not None for _, block in program.blocks)


def test_replicas_are_the_outer_dimension(world: None) -> None:
    mesh = fake_mesh(8, replicas=2)
    assert tuple(mesh.shape) == (2, 4) and mesh.mesh_dim_names == ("replicate", "shard")
    with pytest.raises(ValueError, match="8 ranks cannot hold 3 replicas"):
        make_mesh("cpu", 8, 3)


@pytest.mark.parametrize(
    "entry", {e.model_type: e for e in catalogue.entries()}.values(), ids=lambda e: e.model_type
)
def test_each_type_of_the_catalogue_trains_all_its_parameters_on_the_recipes_loss(entry: Any) -> None:
    config = load_config({"model_type": entry.model_type, **entry.config})
    attn = "sdpa" if "sdpa" in supported_attention(config) else "eager"
    model = build_model(config, layers="auto", attn=attn)
    with SkipMode():
        program = apply_recipe(model, find_blocks(model), TrainRecipe(scope="none"))
        [batch] = make_batches(model.config, lengths=(24,), model=model)
        assert program.step(batch.kwargs).shape == ()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_labels_are_shifted_within_each_document() -> None:
    config = load_config(DENSE)
    for packed, size in ((True, 1), (False, 2)):
        [batch] = make_batches(config, lengths=(20,), batch_size=size, packed=packed)
        ids, labels = batch.kwargs["input_ids"].flatten(), batch.kwargs["labels"].flatten()
        starts = (batch.kwargs["position_ids"].flatten() == 0).tolist()
        assert sum(starts) == len(batch.documents) == (4 if packed else 2)
        for i, label in enumerate(labels.tolist()):
            last = i + 1 == len(labels) or starts[i + 1]
            assert label == (-100 if last else int(ids[i + 1]))
