"""The whole recipe on one screen: activation checkpointing, then compile, then FSDP2, blocks first and the
root last.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.checkpointing import apply_ac
from trainer.compile import Compiler
from trainer.forward import install_loss_forward
from trainer.model import find_blocks


def make_mesh(device: str, world: int, replicas: int) -> DeviceMesh:
    """1-D mesh of all ranks, or replicas x shards (HSDP). Raises ``ValueError`` when the world does not
    divide.
    """
    if world % replicas:
        raise ValueError(
            f"{world} ranks cannot hold {replicas} replicas; the world size must be a multiple of --replicas"
        )
    if replicas == 1:
        return init_device_mesh(device, (world,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (replicas, world // replicas), mesh_dim_names=("replicate", "shard"))


def parallelize(
    model: nn.Module, *, mesh: DeviceMesh, compiler: Compiler, ac: str, dtype: torch.dtype, loss_chunks: int
) -> dict[str, nn.Module]:
    """Wrap ``model`` in place and return its blocks by plain name.

    The order matters: a checkpoint outside of a compiled block would hide it from the partitioner and keep
    far more memory, and FSDP2's hooks inside of a graph would break it. Gradients are summed over ranks in
    float32 (float64 stays): the loss is divided by the global batch's tokens.
    """
    blocks = apply_ac(model, find_blocks(model), ac)
    compiler.blocks(blocks)
    install_loss_forward(model, compiler, chunks=loss_chunks)

    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.promote_types(dtype, torch.float32), cast_forward_inputs=False
    )
    # One region over all blocks cannot have sharding hooks between them: the root alone is sharded, and
    # gathered whole.
    shards = [] if compiler.whole_model else list(blocks.values())
    for block in shards:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in (*shards, model):
        # A plain sum: gloo has neither the averaging nor the scaling reduction, and nothing is to be divided.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return blocks
