"""FSDP2: each block a group of its own, the root last."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from cftdiag.recipe.tensor_parallel import TENSOR


def make_mesh(device: str, world: int, replicas: int = 1, tensor: int = 1) -> DeviceMesh:
    """Mesh of all ranks: shards, with replicas (HSDP) before and with the ranks of a split block (tensor
    parallelism) behind, where there is more than one. Raises ``ValueError`` when the world does not divide.
    """
    if world % tensor:
        raise ValueError(
            f"{world} ranks cannot split blocks over {tensor}; the world size must be a multiple of --tensor-parallel"
        )
    if world // tensor % replicas:
        raise ValueError(
            f"{world // tensor} ranks cannot hold {replicas} replicas; the world size must be a multiple of --replicas"
            + (" x --tensor-parallel" if tensor > 1 else "")
        )
    sizes = {"replicate": replicas, "shard": world // replicas // tensor, TENSOR: tensor}
    kept = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return init_device_mesh(device, tuple(kept.values()), mesh_dim_names=tuple(kept))


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The dimensions whose ranks have rows of their own: replicas and shards."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name != TENSOR)
    return mesh if len(names) == mesh.ndim else mesh[names]


def shard(
    model: nn.Module, blocks: Iterable[nn.Module], *, mesh: DeviceMesh, dtype: torch.dtype | None
) -> None:
    """Shard ``blocks`` and then ``model``, in place. ``dtype`` is that of forward and backward; None leaves
    the parameters' own.

    Gradients are summed over ranks in float32 (float64 stays): the loss is divided by the global batch's
    tokens.
    """
    stored = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.promote_types(dtype or stored, torch.float32),
        cast_forward_inputs=False,
    )
    shards = list(blocks)
    for block in shards:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # The root's embedding and head are needed at both ends of a step: gathered once.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in (*shards, model):
        # A plain sum: gloo has neither the averaging nor the scaling reduction, and nothing is to be divided.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
