"""The whole recipe on one screen: tensor parallelism, activation checkpointing, torch.compile, then FSDP2.

The trainer calls :func:`apply_recipe` with real ranks and real weights, the check with a fake world and none:
what is checked is what is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from cftdiag.recipe.activation_checkpointing import apply_ac
from cftdiag.recipe.blocks import Blocks
from cftdiag.recipe.fsdp import data_mesh, shard
from cftdiag.recipe.loss import RowLoss, install_loss
from cftdiag.recipe.tensor_parallel import TENSOR, split_blocks
from cftdiag.recipe.train_recipe import TrainRecipe
from cftdiag.torch_private.tracing import tree_leaves

#: Name of the region that is a model whose own forward is compiled whole.
ROOT = "<root>"


def apply_recipe(
    model: nn.Module,
    blocks: Blocks,
    recipe: TrainRecipe | None = None,
    *,
    compile: Callable[[nn.Module, str], object] | None = None,
    mesh: DeviceMesh | None = None,
) -> Program:
    """Wrap ``model`` in place. ``compile(module, name)`` compiles a region in place; without ``mesh`` nothing
    is sharded. Raises ``ValueError`` where the recipe does not fit the model.

    The order matters: a checkpoint outside of a compiled block would hide it from the partitioner and keep
    far more memory, and FSDP2's hooks inside of a graph would break it.
    """
    recipe = recipe or TrainRecipe()
    if recipe.tensor_parallel > 1:
        if mesh is None or TENSOR not in (mesh.mesh_dim_names or ()):
            raise ValueError(
                f"--tensor-parallel {recipe.tensor_parallel} needs as many ranks; give a larger world"
            )
        split_blocks(model, blocks, mesh[TENSOR])
    blocks = apply_ac(model, blocks, recipe.ac)
    own_loss = recipe.loss_chunks is None
    outer = _own_regions(model, recipe) if own_loss else install_loss(model, recipe)
    regions = [*(blocks if "block" in recipe.regions else ()), *outer]
    if compile is not None:
        for name, region in regions:
            compile(region, name)
    if mesh is not None:
        # One region over all blocks cannot have sharding hooks between them: the root alone is sharded, and
        # gathered whole.
        groups = [] if recipe.whole_model else [block for _, block in blocks]
        data = data_mesh(mesh)
        shard(model, groups, mesh=data, dtype=getattr(torch, recipe.dtype) if recipe.dtype else None)
    return Program(
        model=model, blocks=blocks, regions=regions, own_loss=own_loss, loss=recipe.loss or RowLoss()
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A wrapped model and its training step."""

    model: nn.Module
    blocks: Blocks
    """(name without wrappers, wrapped module): the module whose call runs the block."""
    regions: Blocks
    """The same of what is compiled: blocks, the loss, the model's body, or model and loss as one."""
    own_loss: bool
    """The model's forward is its own; otherwise it returns the summed ``loss`` of a row."""
    loss: RowLoss

    def step(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Forward, loss, backward of one batch; returns the loss (0-d). Gradients stay on the parameters."""
        loss = self.forward_loss(batch)
        loss.backward()
        return loss.detach()

    def forward_loss(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """One forward and loss: the arguments of a batch -> 0-d tensor, a mean over what the loss counts."""
        if self.own_loss:
            out = self.model(**batch)
            loss = getattr(out, "loss", None)
            return loss if loss is not None else first_tensor(out).float().mean()
        if missing := [name for name in self.loss.inputs if name not in batch]:
            raise ValueError(f"the loss needs {missing[0]} in every batch")
        row: torch.Tensor | tuple[torch.Tensor, ...] = self.model(**batch)
        return (row[0] if isinstance(row, tuple) else row) / max(1, int(self.loss.weight(batch)))

    def zero_grad(self) -> None:
        """Drop all gradients, as a training step does before the next forward."""
        self.model.zero_grad(set_to_none=True)


def _own_regions(model: nn.Module, recipe: TrainRecipe) -> Blocks:
    if any(region.endswith("loss") for region in recipe.regions):
        raise ValueError(
            f"compile scope {recipe.scope}: the loss is inside of {type(model).__name__}'s own forward; "
            "use block or model"
        )
    return [(ROOT, model)] if "model" in recipe.regions else []


def first_tensor(out: Any) -> torch.Tensor:
    """The first floating tensor in a model's output; ``ValueError`` when there is none."""
    for value in tree_leaves(out.to_tuple() if hasattr(out, "to_tuple") else out):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise ValueError(
        f"the model returned {type(out).__name__} without a floating tensor; return a loss or give Subject.step"
    )
