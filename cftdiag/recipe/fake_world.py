"""A world of several ranks in one process: torch's fake process group, whose collectives return at once."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def fake_mesh(world_size: int, replicas: int = 1, tensor: int = 1) -> Any:
    """CPU device mesh of ``world_size`` ranks (see `cftdiag.recipe.fsdp.make_mesh`), of which this process is
    rank 0.

    The fake process group is started once a process; asking for another size afterwards raises
    ``RuntimeError``, and so does a torch built without distributed.
    """
    if not dist.is_available():
        raise RuntimeError("this torch is built without torch.distributed; check with --world-size 1")
    from cftdiag.recipe.fsdp import make_mesh
    from cftdiag.torch_private.world import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    if dist.get_world_size() != world_size or dist.get_backend() != "fake":
        raise RuntimeError(
            f"a {dist.get_backend()} process group of {dist.get_world_size()} ranks exists already; check in a fresh process"
        )
    return make_mesh("cpu", world_size, replicas, tensor)
