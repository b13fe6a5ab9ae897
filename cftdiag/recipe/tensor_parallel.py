"""Tensor parallelism of dense blocks: the projections of attention and MLP are split over the ranks of a mesh
dimension, by the plan that transformers has for the model. Embedding, norms and lm_head stay whole on each.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from cftdiag.findings import covers
from cftdiag.recipe.blocks import Blocks

#: Name of the mesh dimension.
TENSOR = "tensor"
_HEADS = 2
"""Dimension of the heads where a norm is applied to each: batch x tokens x heads x width."""


def split_blocks(model: nn.Module, blocks: Blocks, mesh: DeviceMesh) -> None:
    """Split the weights of each block over ``mesh`` (one dimension), in place, before anything else wraps it.

    Raises ``ValueError`` for a model without a plan, with one that asks for more than dense layers, and for
    heads that do not divide.
    """
    kinds = _plan(model)
    _require_heads(model, mesh.size())
    found = 0
    for name, block in blocks:
        styles: dict[str, ParallelStyle] = {}
        for inner, module in block.named_modules():
            word = next((w for glob, w in kinds.items() if covers(glob, f"{name}.{inner}")), None)
            if word is not None:
                styles[inner] = _style(f"{name}.{inner}", module, word, mesh.size())
        found += len(styles)
        parallelize_module(block, mesh, styles)
    if not found:
        raise ValueError(f"{type(model).__name__}: its tensor-parallel plan names nothing in its blocks")


def _plan(model: nn.Module) -> dict[str, str]:
    """Glob of a module's name -> word of transformers' plan, in the model that has a head."""
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    plan: dict[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    if not plan:
        raise ValueError(
            f"transformers has no tensor-parallel plan for {type(model).__name__}; leave out --tensor-parallel"
        )
    return {f"{prefix}.{glob}" if prefix else glob: word for glob, word in plan.items()}


def _require_heads(model: nn.Module, ranks: int) -> None:
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(text, name, None)
        if count is not None and count % ranks:
            raise ValueError(
                f"--tensor-parallel {ranks} does not divide {name} {count} of {type(model).__name__}; give a divisor"
            )


def _style(name: str, module: nn.Module, word: str, ranks: int) -> ParallelStyle:
    if isinstance(module, nn.Linear) and word == "colwise" and module.out_features % ranks == 0:
        return ColwiseParallel()
    if isinstance(module, nn.Linear) and word == "rowwise" and module.in_features % ranks == 0:
        return RowwiseParallel()
    weight = getattr(module, "weight", None)
    if word == "replicated_with_grad_allreduce" and weight is not None and weight.dim() == 1:
        return SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
    if isinstance(module, nn.Linear) and word in ("colwise", "rowwise"):
        raise ValueError(
            f"--tensor-parallel {ranks} does not divide the {'x'.join(map(str, module.weight.shape))} weight of {name}; give a divisor"
        )
    raise ValueError(
        f"--tensor-parallel splits dense layers; the plan of {name} asks for {word}, which is not there"
    )
