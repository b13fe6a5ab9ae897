"""Process group and device of this rank, with or without torchrun."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Where this process stands."""

    rank: int
    world: int
    device: torch.device


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """The default group over torchrun's ranks, or over this process alone; an existing group is used and left as it is.

    Raises ``ValueError`` when CUDA is asked for and not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; give --device cpu")
    here = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(here)
    if dist.is_initialized():
        yield Ranks(rank=dist.get_rank(), world=dist.get_world_size(), device=here)
        return
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as directory:
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
        try:
            yield Ranks(rank=dist.get_rank(), world=dist.get_world_size(), device=here)
        finally:
            dist.destroy_process_group()
