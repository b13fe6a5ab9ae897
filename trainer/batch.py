"""From a packed row to the tensors of one forward, on the ranks and in the order that packing decided."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cftdiag.recipe.packing import Row, Sample, Step
from trainer.records import IGNORE, Tokens
from trainer.signals import SIGNALS

Batch = dict[str, Tensor | Any]


class Samples(Protocol):
    """Indexed samples: :class:`trainer.records.Records` or a part of it."""

    samples: list[Sample]

    def __getitem__(self, index: int) -> Tokens: ...


def collate(row: Row, samples: Samples, *, pad_id: int, varlen: bool) -> Batch:
    """Tensors of shape 1 x length: ``input_ids``, ``position_ids`` (restarting with each document) and
    ``labels``.

    Labels are shifted here: position t has the label of token t + 1, and the last position of each document
    has none. Padding is a document of its own. With ``varlen`` the boundaries are also there as
    ``cu_seq_lens_q/k`` (int32) and ``max_length_q/k``, as flash kernels want them.
    """
    ids: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    borders = [0]
    for index in row.samples:
        for own_ids, own_labels in samples[index].documents:
            ids.extend(own_ids)
            positions.extend(range(len(own_ids)))
            labels.extend(own_labels[1:])
            labels.append(IGNORE)
            borders.append(len(ids))
    padding = row.length - len(ids)
    if padding:
        ids.extend([pad_id] * padding)
        positions.extend(range(padding))
        labels.extend([IGNORE] * padding)
        borders.append(len(ids))
    batch: Batch = {
        "input_ids": torch.tensor([ids]),
        "position_ids": torch.tensor([positions]),
        "labels": torch.tensor([labels]),
    }
    if varlen:
        lengths = torch.tensor(borders, dtype=torch.int32)
        longest = int((lengths[1:] - lengths[:-1]).max())
        batch |= {
            "cu_seq_lens_q": lengths,
            "cu_seq_lens_k": lengths,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    return batch


class _RankRows(Dataset[Batch]):
    def __init__(
        self, rows: Sequence[Row], samples: Samples, pad_id: int, varlen: bool, collate: Callable[..., Batch]
    ) -> None:
        self._rows, self._samples, self._pad_id, self._varlen = rows, samples, pad_id, varlen
        self._collate = collate

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        return self._collate(self._rows[index], self._samples, pad_id=self._pad_id, varlen=self._varlen)


def rank_batches(
    steps: Sequence[Step],
    samples: Samples,
    *,
    rank: int,
    pad_id: int,
    varlen: bool,
    workers: int = 0,
    pin: bool = False,
    collate: Callable[..., Batch] = collate,
) -> Iterator[tuple[Step, list[Batch]]]:
    """Each step with this rank's batches, one a microstep; only these are read and collated, by ``workers``
    processes ahead of time, in the way of ``collate`` (arguments as :func:`collate`).
    """
    rows = [microstep[rank] for step in steps for microstep in step.rows]
    loader = DataLoader(
        _RankRows(rows, samples, pad_id, varlen, collate),
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=_outlive_signals,
        # Without a generator of its own the loader would draw its seed from the global one, and training with
        # workers would differ from without.
        generator=torch.Generator().manual_seed(0),
    )
    batches = iter(loader)
    for step in steps:
        yield step, [next(batches) for _ in step.rows]


def _outlive_signals(_worker: int) -> None:
    # torchrun and schedulers signal whole process groups: the step that is to be finished still needs its
    # batches.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Tensors on the device, without waiting for the copy."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
