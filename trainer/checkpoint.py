"""Sharded checkpoints: written beside and renamed, so that a name in ``checkpoints/`` is always a whole one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trainer.weights import plain_name

STATE = "state.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where training stood: all that is not a tensor."""

    step: int
    tokens: int
    ranks: dict[str, int]
    """Frozen directions of each OSFT target, so that resuming decomposes nothing again."""
    config: dict[str, Any]


def save(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State, *, keep: int) -> Path:
    """Write ``directory/step-NNNNNNNN`` and remove all but the newest ``keep``. Collective."""
    final = directory / f"step-{state.step:08d}"
    partial = directory / f"{final.name}.partial"
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    dcp.save(_tensors(model, optimizer), checkpoint_id=str(partial))
    if dist.get_rank() == 0:
        (partial / STATE).write_text(json.dumps(dataclasses.asdict(state), indent=1))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in find(directory)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Fill model and optimizer. Collective. Raises ``ValueError`` when the checkpoint's keys are not the model's."""
    tensors = _tensors(model, optimizer)
    wanted, there = set(_flat(tensors)), set(dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata)
    if missing := sorted(wanted - there):
        raise ValueError(f"{path} lacks {len(missing)} of the model's keys, the first is {missing[0]!r}; was it trained with other options?")
    if unknown := sorted(there - wanted):
        raise ValueError(f"{path} has {len(unknown)} keys that the model has not, the first is {unknown[0]!r}; was it trained with other options?")
    dcp.load(tensors, checkpoint_id=str(path))
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])


def read_state(path: Path) -> State:
    """The state of a checkpoint. Raises ``ValueError`` when ``path`` is not one."""
    try:
        return State(**json.loads((path / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this trainer: {error}") from error


def find(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in directory.glob("step-*") if p.suffix != ".partial" and (p / STATE).exists())


def resolve(resume: str, directory: Path) -> Path | None:
    """The checkpoint that ``resume`` names; ``auto`` is the newest, None when there is none yet."""
    if resume != "auto":
        return Path(resume)
    return found[-1] if (found := find(directory)) else None


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    # Buffers that are not part of the state dict (rotary frequencies) have no other source once weights are not loaded from the plain model.
    buffers = {plain_name(name): buffer for name, buffer in model.named_buffers()}
    return {"model": model_state, "optimizer": optimizer_state, "buffers": buffers}


def _flat(values: Any, prefix: str = "") -> list[str]:
    if isinstance(values, dict) and values:
        return [name for key, value in values.items() for name in _flat(value, f"{prefix}.{key}" if prefix else str(key))]
    if isinstance(values, (list, tuple)) and values and any(isinstance(v, (dict, list, tuple, torch.Tensor)) for v in values):
        return [name for i, value in enumerate(values) for name in _flat(value, f"{prefix}.{i}")]
    return [prefix]
