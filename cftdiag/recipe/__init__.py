"""The program that is trained, and checked: model, blocks, batches, and how they are wrapped.

`apply_recipe` is the one place where activation checkpointing, torch.compile and FSDP2 are put on a model; the
trainer and the check both call it. Names are imported on first use: packing and the recipe's words need no
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cftdiag.recipe.apply import ROOT, Program, apply_recipe
    from cftdiag.recipe.batches import Batch, make_batches, max_positions
    from cftdiag.recipe.blocks import BlockGroup, block_groups, find_blocks
    from cftdiag.recipe.errors import DepthNotReached
    from cftdiag.recipe.fake_world import fake_mesh
    from cftdiag.recipe.layers import auto_layers, select_layers, truncate
    from cftdiag.recipe.model_config import count_parameters, load_config, supported_attention
    from cftdiag.recipe.train_recipe import TrainRecipe
    from cftdiag.recipe.weightless_model import build_model

_EXPORTS = {
    "apply": ("ROOT", "Program", "apply_recipe"),
    "batches": ("Batch", "make_batches", "max_positions"),
    "blocks": ("BlockGroup", "block_groups", "find_blocks"),
    "errors": ("DepthNotReached",),
    "fake_world": ("fake_mesh",),
    "layers": ("auto_layers", "select_layers", "truncate"),
    "model_config": ("count_parameters", "load_config", "supported_attention"),
    "train_recipe": ("TrainRecipe",),
    "weightless_model": ("build_model",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "ROOT",
    "Batch",
    "BlockGroup",
    "DepthNotReached",
    "Program",
    "TrainRecipe",
    "apply_recipe",
    "auto_layers",
    "block_groups",
    "build_model",
    "count_parameters",
    "fake_mesh",
    "find_blocks",
    "load_config",
    "make_batches",
    "max_positions",
    "select_layers",
    "supported_attention",
    "truncate",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"cftdiag.recipe.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'cftdiag.recipe' has no attribute {name!r}")
