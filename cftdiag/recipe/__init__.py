"""The program that is checked: model, blocks, batches and training step, built without weights."""

from cftdiag.recipe.apply import AC, LOSS, ROOT, SCOPES, STEP, Program, causal_lm_loss, wrap_blocks
from cftdiag.recipe.batches import DEFAULT_LENGTHS, Batch, make_batches, max_positions
from cftdiag.recipe.blocks import BlockGroup, block_groups, find_blocks, strip_wrappers
from cftdiag.recipe.errors import DepthNotReached
from cftdiag.recipe.layers import auto_layers, select_layers, truncate
from cftdiag.recipe.model_config import ATTENTION, count_parameters, load_config, supported_attention
from cftdiag.recipe.stacks import stacks
from cftdiag.recipe.weightless_model import build_model

__all__ = [
    "AC",
    "ATTENTION",
    "DEFAULT_LENGTHS",
    "LOSS",
    "ROOT",
    "SCOPES",
    "STEP",
    "Batch",
    "BlockGroup",
    "DepthNotReached",
    "Program",
    "auto_layers",
    "block_groups",
    "build_model",
    "causal_lm_loss",
    "count_parameters",
    "find_blocks",
    "load_config",
    "make_batches",
    "max_positions",
    "select_layers",
    "stacks",
    "strip_wrappers",
    "supported_attention",
    "truncate",
    "wrap_blocks",
]
