"""What of a run is tensors: the flat state dict that a checkpoint is written from and read into, in place."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.fsdp import FSDPModule

from trainer.weights import plain_name


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """What each rank has of its own."""

    rng: dict[str, Any]
    compiled: list[list[int]]
    """Where this rank compiled: ``[step, -1]`` in training, ``[step, i]`` in the i-th batch of the validation
    after it; before the first step (0) in the i-th that the objective runs ahead. Then the lengths of
    the rows, where the objective made them.
    """
    objective: dict[str, Any] | None = None
    """What the objective must have to go on (:meth:`trainer.objectives.Objective.state`)."""


def collect(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every parameter, buffer and optimizer state, sharded as it is, by names of the plain model.

    Buffers that are not part of the state dict (rotary frequencies) are there too: they have no other source
    once weights are not loaded from the plain model. The optimizer must have its states
    (:func:`trainer.optim.make_optimizer`).
    """
    # After a validation the root still holds gathered parameters, which are other objects than the ones that
    # are trained.
    if isinstance(model, FSDPModule):
        model.reshard()
    names = {parameter: plain_name(name) for name, parameter in model.named_parameters()}
    flat: dict[str, Tensor] = {f"model.{name}": parameter.detach() for parameter, name in names.items()}
    flat |= {f"model.{plain_name(name)}": buffer for name, buffer in model.named_buffers()}
    for parameter, values in optimizer.state.items():
        flat |= {f"optimizer.{names[parameter]}.{key}": value for key, value in values.items()}
    return flat


def rank_key(rank: int) -> str:
    """Key of a rank's own state."""
    return f"rank.{rank:05d}"


def encode(state: RankState) -> bytes:
    """As bytes, which are stored as they are."""
    return json.dumps(dataclasses.asdict(state)).encode()


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[RankState]:
    """Fill model and optimizer in place; returns the own states of all ranks that wrote the checkpoint.
    Collective.

    Raises ``ValueError`` naming the first key that is missing, unknown, or of another shape or dtype.
    """
    tensors = collect(model, optimizer)
    stored = read_metadata(path)
    check_keys(path, {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}, stored)
    own = [name for name, entry in stored.items() if isinstance(entry, BytesStorageMetadata)]
    wanted: dict[str, Any] = {**tensors, **dict.fromkeys(own, b"")}
    read(path, wanted)
    return [RankState(**json.loads(wanted[name])) for name in sorted(own)]


def read_metadata(path: Path) -> dict[str, Any]:
    """What is stored, by key. Raises ``ValueError`` when it cannot be read."""
    try:
        return dict(dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata)
    except Exception as error:  # a pickle that is cut short raises almost anything
        raise ValueError(f"{path} cannot be read: {error}") from error


def read(path: Path, wanted: dict[str, Any]) -> None:
    """Fill the values of ``wanted`` in place; collective where there is a process group. Raises
    ``ValueError`` when a file is damaged.
    """
    alone = not dist.is_initialized()
    try:
        with warnings.catch_warnings():
            if alone:
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(wanted, checkpoint_id=str(path), no_dist=alone)
    except CheckpointException as error:
        raise ValueError(f"{path} cannot be read, give another checkpoint: {failure_text(error)}") from error


def check_keys(
    path: Path, wanted: dict[str, tuple[tuple[int, ...], torch.dtype]], stored: dict[str, Any]
) -> None:
    """Raise ``ValueError`` when the tensors of a checkpoint are not those that are wanted."""
    there = {name: entry for name, entry in stored.items() if isinstance(entry, TensorStorageMetadata)}
    advice = "give the options that it was trained with"
    if missing := sorted(wanted.keys() - there.keys()):
        raise ValueError(
            f"{path} lacks {len(missing)} of this model's tensors, the first is {missing[0]}; {advice}"
        )
    if unknown := sorted(there.keys() - wanted.keys()):
        raise ValueError(
            f"{path} has {len(unknown)} tensors that this model has not, the first is {unknown[0]}; {advice}"
        )
    for name, (shape, dtype) in wanted.items():
        found = (tuple(there[name].size), there[name].properties.dtype)
        if found != (shape, dtype):
            raise ValueError(
                f"{path} has {name} as {found[1]} {list(found[0])}, this model as {dtype} {list(shape)}; {advice}"
            )


def failure_text(error: BaseException) -> str:
    """The cause of a failed save or load: torch's own text is a traceback of each rank."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = next(iter(sorted(error.failures.items())))
        cause = failure[0] if isinstance(failure, tuple) else failure
        return f"rank {rank}: {_first_line(cause)}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "a file of tensors is damaged"  # torch's text advises to run what is in it
    text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    # What torch's writer of tensors says of a file that ends early.
    return f"{text} (is the disk full?)" if "inline_container" in text else text
