"""Batches with real token ids and positions."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig

from cftdiag.options import DEFAULT_LENGTHS
from cftdiag.recipe.packing import IGNORE


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Arguments of one forward, ``model(**batch.kwargs)``."""

    kwargs: Mapping[str, Any]
    batch_size: int
    """Rows."""
    length: int
    """Tokens a row."""
    documents: tuple[int, ...]
    """Tokens of each document, rows one after another; one document a row unless packed."""


def make_batches(
    config: PretrainedConfig,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    batch_size: int = 1,
    packed: bool = False,
    flash_varlen: bool = False,
    seed: int = 0,
    model: torch.nn.Module | None = None,
) -> list[Batch]:
    """One batch for each length, in order: ``input_ids``, ``labels`` and ``position_ids`` of shape
    (batch_size, length), int64.

    Labels are shifted: a position has the token after it, the last of each document -100. ``packed`` makes one
    row of several documents, with positions that restart. ``flash_varlen`` adds the arguments of
    variable-length flash attention: ``cu_seq_lens_q/k`` (int32) and ``max_length_q/k``. With ``model``,
    arguments that its forward does not take are left out.
    ``ValueError`` for lengths that are not positive or beyond the model's positions.
    """
    _validate(config, lengths, batch_size, packed)
    taken = None if model is None else _taken(model)
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for length in lengths:
        documents = split_documents(length) if packed else (length,) * batch_size
        kwargs = _arguments(config, length, batch_size, documents, generator)
        if flash_varlen:
            kwargs |= _varlen(documents)
        if taken is not None:
            kwargs = {name: value for name, value in kwargs.items() if name in taken}
        batches.append(Batch(kwargs=kwargs, batch_size=batch_size, length=length, documents=documents))
    return batches


def split_documents(length: int) -> tuple[int, ...]:
    """Lengths of the documents of a packed row: up to four, all different where the row is long enough."""
    parts = [length // 3, length // 5, length // 9]
    return tuple(part for part in (length - sum(parts), *parts) if part)


def _validate(config: PretrainedConfig, lengths: Sequence[int], batch_size: int, packed: bool) -> None:
    if not lengths:
        raise ValueError("no lengths given; give at least one, such as 512")
    wrong = [n for n in lengths if isinstance(n, bool) or not isinstance(n, int) or n < 1]
    if wrong:
        raise ValueError(f"length {wrong[0]} is not a positive number of tokens")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch size {batch_size} is not a positive number of rows")
    if packed and batch_size > 1:
        raise ValueError(
            f"a packed batch is one row of several documents; batch size {batch_size} cannot be packed"
        )
    limit = max_positions(config)
    if limit is not None and max(lengths) > limit:
        raise ValueError(
            f"length {max(lengths)} is beyond the {limit} positions of this model; give shorter lengths"
        )


def max_positions(config: PretrainedConfig) -> int | None:
    """Longest sequence the configuration allows, or None when it sets no limit."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _arguments(
    config: PretrainedConfig,
    length: int,
    batch_size: int,
    documents: tuple[int, ...],
    generator: torch.Generator,
) -> dict[str, Any]:
    text = config.get_text_config()
    ids = torch.randint(0, text.vocab_size, (batch_size, length), generator=generator)
    pad = getattr(text, "pad_token_id", None)
    if isinstance(pad, int) and text.vocab_size > 1:  # a padding token without a mask makes transformers warn
        ids[ids == pad] = (pad + 1) % text.vocab_size
    positions = torch.cat([torch.arange(n) for n in documents]).view(batch_size, length)
    labels = torch.cat([_next(part) for part in ids.flatten().split(list(documents))])
    labels = labels.view(batch_size, length)
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def _next(document: torch.Tensor) -> torch.Tensor:
    return torch.cat([document[1:], document.new_tensor([IGNORE])])


def _varlen(documents: tuple[int, ...]) -> dict[str, Any]:
    ends = torch.tensor([0, *itertools.accumulate(documents)], dtype=torch.int32)
    longest = max(documents)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends.clone(),
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _taken(model: torch.nn.Module) -> Any:
    parameters = inspect.signature(model.forward).parameters
    return _Everything() if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else set(parameters)


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True
