"""The training and validation sets of a configuration, and the packed steps over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cftdiag.recipe.packing import Shape, Step, epoch_order, epoch_steps, steps
from trainer.chat import set_template
from trainer.config import TrainConfig
from trainer.demo import data_of
from trainer.records import Records, Subset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on, and in which rows."""

    train: Records | Subset
    validation: Records | Subset | None
    steps: list[Step]
    validation_steps: list[Step]

    @property
    def lengths(self) -> list[list[list[int]]]:
        """Padded row lengths by step, microstep and rank: what a check must compile for."""
        return [[[row.length for row in microstep] for microstep in step.rows] for step in self.steps]


def shape_of(config: TrainConfig, world: int) -> Shape:
    """How the rows of a configuration may look on ``world`` ranks."""
    return Shape(
        world=world,
        capacity=config.row_capacity,
        multiple=config.pad_to_multiple_of,
        buckets=config.length_buckets,
    )


def open_data(
    config: TrainConfig,
    tokenizer: Any,
    *,
    vocabulary: int,
    world: int,
    report: Callable[[str], None] = lambda _: None,
    write_cache: bool = False,
) -> Data:
    """Read, check and pack; needs no torch. Tokens are taken from the cache, and put there with
    ``write_cache``. Raises ``ValueError`` for missing, empty or malformed data."""
    path = (
        str(data_of(Path(config.output_dir) / "demo", config.objective)) if config.demo else config.data_path
    )
    if not path:
        raise ValueError("no data: give --data-path, or --demo for the embedded set")

    if config.objective == "grpo" and config.reward is None:
        raise ValueError("no reward: give --reward module:function, or --demo for the embedded one")
    set_template(tokenizer, config.chat_template)

    cache: Path | None = (
        Path(config.token_cache) if config.token_cache else Path(config.output_dir) / "tokens"
    )
    if config.objective == "grpo":  # whose reward reads the rows themselves
        cache = None

    def read(file: str) -> Records:
        return Records(
            file, tokenizer, vocabulary=vocabulary, capacity=config.prompt_capacity,
            bad_records=config.bad_records, over_long=config.over_long, streaming=config.streaming,
            train_on=config.train_on, objective=config.objective, cache=cache, write_cache=write_cache, report=report,
        )  # fmt: skip

    everything = read(path)
    train: Records | Subset = everything
    validation: Records | Subset | None = read(config.validation_path) if config.validation_path else None
    if config.validation_split:
        order = epoch_order(len(everything), seed=config.seed, epoch=-1)
        held = round(len(order) * config.validation_split)
        if not 0 < held < len(order):
            raise ValueError(
                f"validation-split {config.validation_split} of {len(order)} samples leaves one of the two sets empty"
            )
        train, validation = Subset(everything, sorted(order[held:])), Subset(everything, sorted(order[:held]))
    for name, samples in (("training", train), ("validation", validation)):
        if samples is not None and not any(sample.loss_tokens for sample in samples.samples):
            raise ValueError(
                f"no sample of the {name} set has a token to predict: every label is masked; "
                "give another --validation-split or data"
            )
    shape = shape_of(config, world)
    empty: list[int] = []
    updates = config.updates
    planned = list(
        steps(
            train.samples, shape, batch_size=config.batch_size, seed=config.seed,
            epochs=config.epochs, max_steps=None if config.max_steps is None else -(-config.max_steps // updates),
            max_tokens=config.max_tokens, left_out=lambda: empty.append(1),
        )
    )  # fmt: skip
    if count := len(empty):
        report(f"{path}: {count} of {len(planned) + count} batches have no token to learn and are left out")
    return Data(
        train=train,
        validation=validation,
        steps=[dataclasses.replace(step, update=i) for step in planned for i in range(updates)][: config.max_steps],
        validation_steps=[]
        if validation is None
        else list(epoch_steps(validation.samples, shape, batch_size=config.batch_size, seed=config.seed, epoch=0, shuffle=False)),
    )  # fmt: skip
