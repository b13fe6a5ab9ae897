"""The program that is checked: model, blocks, batches and training step, built without weights."""

from cftdiag.check.program.batches import DEFAULT_LENGTHS, Batch, make_batches, max_positions
from cftdiag.check.program.blocks import BlockGroup, block_groups, find_blocks, stacks, strip_wrappers
from cftdiag.check.program.config import ATTENTION, count_parameters, load_config, supported_attention
from cftdiag.check.program.errors import DepthNotReached
from cftdiag.check.program.layers import auto_layers, select_layers, truncate
from cftdiag.check.program.model import build_model
from cftdiag.check.program.wrap import AC, LOSS, ROOT, SCOPES, STEP, Program, causal_lm_loss, wrap_blocks

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
