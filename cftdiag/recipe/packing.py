"""Which samples go into which row of which rank: longest first, the same on every rank, without torch.

The check derives the lengths it compiles for from :func:`steps`, so that it sees exactly the rows that
training will see. A *row* is one packed sequence of several documents, forwarded with batch dimension 1; an
optimizer step has one or more *microsteps* of one row per rank.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from array import array
from collections.abc import Callable, Iterator, Sequence

#: Label of a position that is not learnt.
IGNORE = -100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What packing must know of one sample."""

    length: int
    """Tokens."""
    loss_tokens: int
    """Positions whose label is not masked, after the shift."""
    line: int
    """1-based line of the file that it came from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One packed row: indices of samples, in order, and the padded length."""

    samples: tuple[int, ...]
    """Empty for a rank that has nothing to do in this microstep: it forwards padding so that the collectives
    match.
    """
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step."""

    epoch: int
    rows: tuple[tuple[Row, ...], ...]
    """``rows[microstep][rank]``."""
    samples: int
    tokens: int
    """Tokens of the samples, padding not counted."""
    loss_tokens: int
    """Of the global batch: the divisor of the summed loss on every rank."""
    update: int = 0
    """The how-manieth update on the same samples this is, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How rows may look."""

    world: int
    capacity: int
    """Most tokens in a row."""
    multiple: int = 8
    buckets: tuple[int, ...] = ()

    def padded(self, length: int) -> int:
        """``length`` rounded up to the multiple, with at least one padding token where the row has room, then
        to the smallest bucket that holds it.

        Padding is a document of its own. With some in every row the model always sees several documents, and
        so always builds an attention mask: a row of one document would run without one, which is another
        compiled graph.
        """
        rounded = -(-(length + 1) // self.multiple) * self.multiple
        if rounded > self.capacity:
            rounded = -(-length // self.multiple) * self.multiple
        return min((b for b in self.buckets if b >= rounded), default=rounded)


def pack(lengths: Sequence[int], shape: Shape) -> list[list[list[int]]]:
    """Positions in ``lengths`` by microstep and rank, with as few microsteps as longest-first placement
    allows.

    Each sample goes to the row with the fewest tokens so far, longest sample first; ties by position, so that
    every rank computes the same. Rows of one microstep have similar lengths because microsteps take them in
    order of length. Raises ``ValueError`` for a sample that fits no row.
    """
    for position, length in enumerate(lengths):
        if length > shape.capacity:
            raise ValueError(f"sample {position} has {length} tokens, a row holds {shape.capacity}")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    microsteps = max(1, -(-sum(lengths) // (shape.capacity * shape.world)))
    while (rows := _place(order, lengths, microsteps * shape.world, shape.capacity)) is None:
        microsteps += 1
    rows.sort(key=lambda row: (-sum(lengths[i] for i in row), row))
    return [rows[m * shape.world : (m + 1) * shape.world] for m in range(microsteps)]


def _place(order: Sequence[int], lengths: Sequence[int], count: int, capacity: int) -> list[list[int]] | None:
    rows: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, row) for row in range(count)]
    for i in order:
        load, row = heapq.heappop(loads)
        if load + lengths[i] > capacity:
            return None
        rows[row].append(i)
        heapq.heappush(loads, (load + lengths[i], row))
    return rows


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> array[int]:
    """Order of the samples in an epoch, 4 bytes each: depends on the seed and the epoch only, never on the
    world size.
    """
    order = array("i", range(count))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)  # type: ignore[arg-type]  # any mutable sequence will do
    return order


def epoch_steps(
    samples: Sequence[Sample],
    shape: Shape,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    left_out: Callable[[], None] = lambda: None,
) -> Iterator[Step]:
    """The optimizer steps of one epoch; the last may hold fewer samples.

    A batch without a single loss token is left out: it has no gradient, and no divisor. ``left_out`` is called
    for each.
    """
    order = epoch_order(len(samples), seed=seed, epoch=epoch, shuffle=shuffle)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        loss_tokens = sum(samples[i].loss_tokens for i in batch)
        if loss_tokens == 0:
            left_out()
            continue
        lengths = [samples[i].length for i in batch]
        yield Step(
            epoch=epoch,
            rows=tuple(_microstep(ranks, batch, lengths, shape) for ranks in pack(lengths, shape)),
            samples=len(batch),
            tokens=sum(lengths),
            loss_tokens=loss_tokens,
        )


def _microstep(
    ranks: list[list[int]], batch: Sequence[int], lengths: Sequence[int], shape: Shape
) -> tuple[Row, ...]:
    padded = [shape.padded(sum(lengths[i] for i in positions)) for positions in ranks]
    # An idle rank takes the length of a busy one: the others wait for it anyway, and it brings no shape of
    # its own to compile.
    rows = zip(ranks, padded, strict=True)
    return tuple(
        Row(samples=tuple(batch[i] for i in positions), length=length if positions else max(padded))
        for positions, length in rows
    )


def steps(
    samples: Sequence[Sample],
    shape: Shape,
    *,
    batch_size: int,
    seed: int = 42,
    epochs: int | None = 1,
    max_steps: int | None = None,
    max_tokens: int | None = None,
    left_out: Callable[[], None] = lambda: None,
) -> Iterator[Step]:
    """All optimizer steps of a run, until the first of the three limits; ``epochs=None`` repeats for ever.
    ``left_out`` is called for each batch without a loss token before the last step.
    """
    if not any(s.loss_tokens for s in samples):
        raise ValueError("no sample has a token to learn: every label is masked")
    done = tokens = 0
    epoch = 0
    while epochs is None or epoch < epochs:
        for step in epoch_steps(
            samples, shape, batch_size=batch_size, seed=seed, epoch=epoch, left_out=left_out
        ):
            yield step
            done += 1
            tokens += step.tokens
            if (max_steps is not None and done >= max_steps) or (
                max_tokens is not None and tokens >= max_tokens
            ):
                return
        epoch += 1
