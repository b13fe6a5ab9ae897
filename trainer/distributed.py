"""Process group and device of this rank, with or without torchrun."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from trainer.parent import die_with_launcher

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Where this process stands."""

    rank: int
    world: int
    device: torch.device
    tensor: int = 1
    """Ranks in a row that split each block between them and have the same rows (tensor parallelism)."""

    @property
    def data_rank(self) -> int:
        """Among those that have other rows."""
        return self.rank // self.tensor

    @property
    def data_world(self) -> int:
        """How many have other rows."""
        return self.world // self.tensor


@contextlib.contextmanager
def process_group(device: str, *, timeout: int | None = None) -> Iterator[Ranks]:
    """The default group over torchrun's ranks, or over this process alone; an existing group is used and left
    as it is. A collective fails after ``timeout`` seconds, by default torch's own.

    Raises ``ValueError`` when CUDA is asked for and not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; give --device cpu")
    here = (
        torch.device(device, int(os.environ.get("LOCAL_RANK", "0")))
        if device == "cuda"
        else torch.device("cpu")
    )
    if device == "cuda":
        torch.cuda.set_device(here)
    if dist.is_initialized():
        yield Ranks(rank=dist.get_rank(), world=dist.get_world_size(), device=here)
        return
    die_with_launcher()
    limit = datetime.timedelta(seconds=timeout) if timeout is not None else None
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as directory:
        if "RANK" in os.environ:
            dist.init_process_group(backend, timeout=limit)
        else:
            dist.init_process_group(
                backend, init_method=f"file://{directory}/rendezvous", rank=0, world_size=1, timeout=limit
            )
        try:
            yield Ranks(rank=dist.get_rank(), world=dist.get_world_size(), device=here)
        finally:
            dist.destroy_process_group()


def with_tensor(ranks: Ranks, tensor: int) -> Ranks:
    """Where this process stands when ``tensor`` ranks split each block. Raises ``ValueError`` when they do not
    divide the world.
    """
    if ranks.world % tensor:
        raise ValueError(
            f"{ranks.world} ranks cannot split blocks over {tensor}; the world size must be a multiple of --tensor-parallel"
        )
    return dataclasses.replace(ranks, tensor=tensor)


def on_rank_zero(make: Callable[[], Value]) -> Value | None:
    """What ``make()`` returns on rank 0, None on the others; a ``ValueError`` or ``OSError`` of rank 0 is a
    ``ValueError`` on all. Collective.

    Without it the others would wait for a rank that has left, and each would end with a traceback of its own.
    """
    value: Value | None = None
    message: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            value = make()
        except (ValueError, OSError) as error:
            message = [one_line_of(error)]
    dist.broadcast_object_list(message, src=0)
    if message[0] is not None:
        raise ValueError(message[0])
    return value


def anyone(wants: bool, device: torch.device) -> bool:
    """Whether ``wants`` is true on any rank. Collective."""
    shared = torch.tensor(float(wants), device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.item() > 0


def one_line_of(error: ValueError | OSError) -> str:
    """A mistake's text; a system's refusal with the file's name first."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}; check the file and its permissions"
    return str(error)


def require_writable(directory: Path) -> None:
    """Make ``directory`` where it is missing; raises ``ValueError`` when nothing can be written into it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise ValueError(
            f"cannot write into {directory} ({error.strerror or error}); give another --output-dir"
        ) from error
