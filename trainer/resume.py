"""Continuing a run: which checkpoint, whether it fits these options, and the same compiles in the same order
as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cftdiag.options import OBJECTIVES
from trainer.batch import Batch
from trainer.checkpoints.layout import (
    PLAN,
    State,
    candidates,
    damage,
    first_whole,
    prepare,
    read_state,
    truncate_metrics,
)
from trainer.checkpoints.remote import FETCHED, fetch, is_remote
from trainer.checkpoints.tensors import read_metadata
from trainer.config import METHOD_OPTIONS, SHORT_FORMS, TrainConfig
from trainer.data import Data
from trainer.distributed import on_rank_zero
from trainer.program import Program
from trainer.signals import STOPPED
from trainer.step import Stepper

_FIXED = (
    "objective",
    "dpo_loss",
    "dpo_beta",
    "grpo_generations",
    "grpo_completion_tokens",
    "grpo_temperature",
    "grpo_loss",
    "grpo_iterations",
    "grpo_beta",
    "method",
    "lora_rank",
    "lora_alpha",
    "qlora_block_size",
    "tensor_parallel",
    "train_dtype",
    "batch_size",
    "seed",
    "validation_split",
)
"""What a checkpoint cannot be continued with otherwise: another model, or another order of the samples."""
_DECIDED = (
    *("osft_unfreeze_rank_ratio", "osft_task", "osft_task_ratios", "osft_beside", "osft_ranks"),
    *("osft_rank_pattern", "osft_target_patterns"),
    *("lora_target_patterns", "qat_scheme", "qat_group_size", "qat_target_patterns"),
)
"""What was decided when the first run began and can have no effect any more."""
_FREE = frozenset(
    (*_FIXED, *_DECIDED, *SHORT_FORMS, "output_dir", "checkpoint_every", "checkpoint_epochs", "checkpoint_best", "keep_checkpoints", "resume")
    + ("export", "save_dtype", "num_workers", "streaming", "compile_cache", "compile_plan", "preflight", "model_name_or_path")
    + ("data_path", "validation_path", "random_init", "osft_leak_every", "osft_redecompose", "osft_upcast_dtype")
    + ("tracker", "profile_steps", "validate_every", "skip_nonfinite", "chat_template", "train_on", "bad_records", "over_long")
    + ("token_cache", "collective_timeout")
)  # fmt: skip
"""What may be another without changing a loss, or is looked at elsewhere."""


def find(config: TrainConfig, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to continue from, the same on all ranks; None to start afresh. With ``auto`` one that
    cannot be read, or not as it was written, is passed over. Raises ``ValueError`` when it is none.
    Collective.
    """
    if config.resume is None:
        return None
    wanted = config.resume
    if is_remote(wanted):
        copied = on_rank_zero(lambda: str(fetch(config.resume or "", Path(config.output_dir) / FETCHED, say)))
        everyone = [copied]
        dist.broadcast_object_list(everyone, src=0)
        wanted = everyone[0] or ""
    paths = [on_rank_zero(lambda: candidates(wanted, Path(config.output_dir) / "checkpoints"))]
    dist.broadcast_object_list(paths, src=0)
    return first_whole(paths[0] or [], say if wanted == "auto" else None, _problem)


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint; every rank reads a part of its files. Collective."""
    first: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            read_state(path)
            read_metadata(path)
        except (ValueError, OSError) as error:
            first[0] = str(error)
    dist.broadcast_object_list(first, src=0)
    if first[0] is not None:
        return first[0]
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, damage(path, dist.get_rank(), dist.get_world_size()))
    return next((problem for problem in found if problem is not None), None)


def plan_of(found: Path | None, config: TrainConfig) -> str | None:
    """The compile plan to follow: the one that is asked for, else the checkpoint's."""
    if (
        config.compile_plan is None
        and config.scope != "none"
        and found is not None
        and (found / PLAN).exists()
    ):
        return str(found / PLAN)
    return config.compile_plan


def check(state: State, config: TrainConfig, data: Data, *, world: int) -> list[str]:
    """Raise ``ValueError`` when these options cannot continue the checkpoint; returns lines about what will
    not be exact.
    """
    values = config.to_dict()
    stored = TrainConfig.from_mapping(state.config).to_dict()
    for name in _FIXED:
        if _has_effect(name, config) and stored[name] != values[name]:
            had = f"was trained with {name.replace('_', '-')} {stored[name]}"
            raise ValueError(
                f"the checkpoint of step {state.step} {had}, this run has {values[name]}; give what it had"
            )
    for name in _DECIDED:
        if _has_effect(name, config) and stored[name] != values[name]:
            flag, had = name.replace("_", "-"), stored[name]
            raise ValueError(
                f"{flag} {_shown(values[name])} has no effect on the checkpoint of step {state.step}, which was made with "
                f"{_shown(had)}; give what it had"
                + (", or start from it by --osft-redecompose CKPT" if config.osft else "")
            )
    if state.data != data.train.digest:
        raise ValueError(
            f"the checkpoint of step {state.step} was trained on other samples, or on others of their tokens: its "
            "position in the data means nothing here. Give the data, tokenizer and chat template that it had"
        )
    if state.step > len(data.steps):
        raise ValueError(
            f"the checkpoint is at step {state.step}, this run ends at {len(data.steps)}; give more steps or an earlier checkpoint"
        )
    notes = []
    if config.osft and state.config.get("osft_upcast_dtype") != config.osft_upcast_dtype:
        notes.append("osft-upcast-dtype has no effect: the factors are those of the checkpoint")
    for name in ("model_name_or_path", "random_init"):
        if name in state.config and state.config[name] != values[name]:
            notes.append(
                f"{name.replace('_', '-')} {values[name]}: the weights are those of the checkpoint, which began from "
                f"{state.config['model_name_or_path'] if name == 'model_name_or_path' else state.config[name]}"
            )
    if (asked := config.osft_redecompose) and asked != state.config.get("osft_redecompose"):
        notes.append(f"osft-redecompose {asked} has no effect: the run goes on with its own checkpoint")
    if state.validation != validation_digest(data):
        notes.append(
            "another validation set: its losses cannot be compared with earlier ones, and the best begins anew"
        )
    other = sorted(
        name
        for name, value in state.config.items()
        if name in values and name not in _FREE and value != values[name]
    )
    if other:
        notes.append(
            f"continues with another {', '.join(other)}: losses may not be bit for bit those of an uninterrupted run"
        )
    if state.world != world:
        notes.append(
            f"written by {state.world} ranks, continued by {world}: the same samples, other orders of summation, other dropout"
        )
    return notes


def _has_effect(name: str, config: TrainConfig) -> bool:
    """False for an option of a method or an objective that is not the run's."""
    if name.startswith(tuple(f"{other}_" for other in OBJECTIVES if other != config.objective)):
        return False
    groups = {group for groups in METHOD_OPTIONS.values() for group in groups}
    group = name.partition("_")[0]
    return group not in groups or group in METHOD_OPTIONS[config.method_name]


def validation_digest(data: Data) -> str | None:
    """Of the validation set; None without one."""
    return data.validation.digest if data.validation is not None else None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def make_way(found: Path | None, state: State | None, out: Path) -> list[str]:
    """Clear what this run does not continue from checkpoints and metrics, on rank 0; returns lines to print.
    Collective.
    """
    told: list[str] = []

    def clear() -> None:
        told.extend(prepare(out / "checkpoints", found, state.step if state else 0))
        (out / STOPPED).unlink(missing_ok=True)
        if state is not None:
            truncate_metrics(out / "metrics.jsonl", state.step)

    on_rank_zero(clear)
    return told


def read(found: Path | None) -> State | None:
    """The state of a checkpoint that was found."""
    return read_state(found) if found is not None else None


class Compiles:
    """Where a run compiled: the history that a resumed run goes through again, because what torch compiles
    depends on what it has compiled before.
    """

    def __init__(self, graphs: Callable[[], int]) -> None:
        """``graphs`` counts what was compiled so far."""
        self.history: list[list[int]] = []
        """As in :class:`trainer.checkpoints.tensors.RankState`."""
        self._graphs = graphs
        self._seen = graphs()

    def note(self, step: int, batch: int = -1, lengths: Iterable[int] = ()) -> None:
        """Call after each step, and after each batch of a validation with its number; step 0 has those of the
        objective's steps ahead. ``lengths`` are those of rows that the objective made itself.
        """
        if (now := self._graphs()) != self._seen:
            self._seen = now
            self.history.append([step, batch, *lengths])

    def replay(
        self,
        histories: Iterable[list[list[int]]],
        *,
        made: Callable[[list[int]], list[Batch]],
        ahead: Callable[[int], Iterator[tuple[Any, list[Batch]]]],
        train: Callable[[int], Iterator[tuple[Any, list[Batch]]]],
        validate: Callable[[int], Iterator[tuple[Any, list[Batch]]]],
        stepper: Stepper,
        program: Program,
    ) -> int:
        """Run what any rank compiled at, in order, without a step of the optimizer; returns how many batches
        that were. Collective.

        ``made`` gives rows of given lengths, ``ahead`` the batches of a step before the first, ``train`` those of a step (1-based) and
        ``validate`` those of a validation's batch. Random numbers are afterwards as before.
        """
        events = sorted({tuple(event) for history in histories for event in history})
        with torch.random.fork_rng(devices=[program.device] if program.device.type == "cuda" else []):
            for step, batch, *lengths in events:
                program.model.train(batch < 0)
                source: Iterable[tuple[Any, list[Batch]]]
                if lengths:
                    source = [(None, made(lengths))]
                else:
                    source = train(step) if batch < 0 else validate(batch) if step else ahead(batch)
                for _, batches in source:
                    if batch < 0:
                        stepper.forward_backward(batches)
                    else:
                        stepper.evaluate(batches)
            program.model.train()
        self.history = [list(event) for event in events]
        self._seen = self._graphs()
        return len(events)
