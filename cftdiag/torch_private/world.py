"""A fake world of ranks, and the wrappers of a training program that have no public name."""

from __future__ import annotations

from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_COLLECTIVES = "FSDP2 cannot be checked in one process (--world-size)"

NAMES = (
    Name(
        "torch.testing._internal.distributed.fake_pg:FakeStore",
        "world",
        "several ranks cannot be checked in one process (--world-size)",
    ),
    Name(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:checkpoint_wrapper",
        "world",
        "activation checkpointing cannot be applied (--ac)",
        leading=("module",),
    ),
    Name(
        "torch.nn.modules.dropout:_DropoutNd",
        "world",
        "activation checkpointing cannot tell whether a block draws random numbers (--ac)",
    ),
    Name(
        "torch.distributed._functional_collectives:all_reduce",
        "world",
        "blocks cannot be split over ranks (--tensor-parallel)",
        leading=("self", "reduceOp", "group"),
        needed=False,
    ),
    Name(
        "torch.distributed._functional_collectives:wait_tensor",
        "world",
        "blocks cannot be split over ranks (--tensor-parallel)",
        leading=("tensor",),
        needed=False,
    ),
    Name("torch:_foreach_mul_", "trainer", "gradients cannot be clipped", alias="scale_all"),
    Name("torch:ops.c10d._allgather_base_", "world", _COLLECTIVES, alias="allgather"),
    Name("torch:ops.c10d._reduce_scatter_base_", "world", _COLLECTIVES, alias="reduce_scatter"),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)
