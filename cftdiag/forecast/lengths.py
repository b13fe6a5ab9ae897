"""From token counts to the shapes that each rank will meet, in the order it meets them. Torch-free, memory
bounded by the counts themselves.

Guards see batch size, length and whether the batch needs a mask, so a run of millions of steps comes down to
its distinct shapes, each with the step at which it is met first.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cftdiag.errors import InputError
from cftdiag.forecast.data_files import read_lengths
from cftdiag.recipe.packing import Shape as RowShape
from cftdiag.recipe.packing import epoch_order, pack

OVER_LONG = ("fatal", "drop", "truncate")
#: The variant of a batch: every row full, some row padded (so the batch carries an attention mask), several
#: documents in one row.
FULL, PADDED, PACKED = "", "padded", "packed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How a data file becomes batches. Names and meanings are those of the command line and of the trainer."""

    path: str
    batch_size: int | None = None
    """Rows per forward of one rank; with ``packed``: samples per optimizer step over all ranks, None for as
    many as fit.
    """
    max_tokens_per_gpu: int | None = None
    """Most tokens in one forward of one rank, padding included."""
    pad_to_multiple_of: int | None = None
    packed: bool = False
    shuffle_seed: int | None = None
    """None keeps the order of the file; a seed gives the trainer's order of each epoch."""
    world_size: int = 1
    drop_last: bool = False
    max_positions: int | None = None
    """Longest sequence of the model."""
    over_long: str = "fatal"
    epochs: int = 1
    attention_mask: bool = True
    """False where the collator of the training passes no mask for padded rows."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "max_tokens_per_gpu",
            "pad_to_multiple_of",
            "world_size",
            "epochs",
            "max_positions",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} {value!r} must be a positive whole number")
        if self.over_long not in OVER_LONG:
            raise InputError(f"over_long {self.over_long!r} is unknown; use one of {', '.join(OVER_LONG)}")
        if self.packed and self.max_tokens_per_gpu is None:
            raise InputError(
                "--packed needs --max-tokens-per-gpu: the number of tokens that a packed row may hold"
            )

    @property
    def longest_allowed(self) -> int | None:
        """Tokens that a sample may have."""
        limits = [n for n in (self.max_positions, self.max_tokens_per_gpu) if n is not None]
        return min(limits, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """One shape of batch and how a rank meets it. ``step`` is the optimizer step of the first time, 1-based;
    ``visits`` counts forwards.
    """

    batch_size: int
    length: int
    variant: str = FULL
    step: int = 0
    microstep: int = 0
    visits: int = 1

    @property
    def key(self) -> tuple[int, int, str]:
        """What guards can see of it."""
        return self.batch_size, self.length, self.variant


@dataclasses.dataclass(frozen=True, slots=True)
class RankShapes:
    """Distinct shapes of one rank in the order met."""

    rank: int
    shapes: tuple[Shape, ...]

    def to_list(self) -> list[list[Any]]:
        """JSON-ready, one list a shape."""
        return [list(dataclasses.astuple(shape)) for shape in self.shapes]

    @classmethod
    def from_list(cls, rank: int, rows: Iterable[Sequence[Any]]) -> RankShapes:
        """Inverse of :meth:`to_list`."""
        return cls(rank, tuple(Shape(*row) for row in rows))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What was read, and what each rank will see of it."""

    path: str
    samples: int
    tokens: int
    longest: int
    steps: int
    over_long: int
    """Samples beyond the limit, dropped or truncated."""
    ranks: tuple[RankShapes, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready summary; the shapes themselves are in the regime map."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["notes"] = list(self.notes)
        data["ranks"] = [
            {"rank": r.rank, "shapes": len(r.shapes), "forwards": sum(s.visits for s in r.shapes)}
            for r in self.ranks
        ]
        return data


def read_data(options: DataOptions) -> Data:
    """Read ``options.path`` and batch it. Raises :class:`InputError` for bad data or when nothing is left to
    train on.
    """
    lengths = read_lengths(options.path)
    kept, over_long, notes = _limited(lengths, options)
    ranks, steps = collect(batches(kept, options), options.world_size)
    if not steps:
        raise InputError(
            f"{options.path}: {len(kept)} samples make no full batch for {options.world_size} ranks; leave out --drop-last"
        )
    return Data(
        path=str(options.path),
        samples=len(lengths),
        tokens=sum(kept),
        longest=max(kept),
        steps=steps,
        over_long=over_long,
        ranks=ranks,
        notes=tuple(notes),
    )


def _limited(lengths: array[int], options: DataOptions) -> tuple[array[int], int, list[str]]:
    limit = options.longest_allowed
    if limit is None or max(lengths) <= limit:
        return lengths, 0, []
    over = sum(n > limit for n in lengths)
    longest = max(lengths)
    what = "positions of the model" if limit == options.max_positions else "tokens of --max-tokens-per-gpu"
    text = f"{over:,} of {len(lengths):,} samples are longer than the {limit:,} {what} (sample {lengths.index(longest) + 1} has {longest:,})"
    if options.over_long == "fatal":
        raise InputError(
            f"{Path(options.path).name}: {text}; shorten them, or choose --over-long drop or truncate"
        )
    if options.over_long == "truncate":
        return array("i", (min(n, limit) for n in lengths)), over, [f"{text}: truncated"]
    kept = array("i", (n for n in lengths if n <= limit))
    if not kept:
        raise InputError(f"{Path(options.path).name}: {text}; with --over-long drop nothing is left")
    return kept, over, [f"{text}: dropped"]


#: One forward: rows, length, variant. ``None`` for a rank with nothing left to do.
Row = tuple[int, int, str]
#: (optimizer step, microstep, forward of each rank).
Forward = tuple[int, int, list[Row]]


def collect(forwards: Iterable[Forward], world_size: int) -> tuple[tuple[RankShapes, ...], int]:
    """(distinct shapes of each rank in the order met, number of optimizer steps)."""
    met: list[dict[Row, list[int]]] = [{} for _ in range(world_size)]
    last = 0
    for step, microstep, rows in forwards:
        last = step
        for seen, row in zip(met, rows, strict=True):
            entry = seen.get(row)
            if entry is None:
                seen[row] = [step, microstep, 1]
            else:
                entry[2] += 1
    return tuple(
        RankShapes(rank, tuple(Shape(*row, *entry) for row, entry in seen.items()))
        for rank, seen in enumerate(met)
    ), last


def batches(lengths: Sequence[int], options: DataOptions) -> Iterator[Forward]:
    """All forwards of a run in order. ``lengths`` are those of the samples in file order, over-long ones
    dealt with.
    """
    chunks: Iterator[Iterator[Forward]] = (_epoch(lengths, options, epoch) for epoch in range(options.epochs))
    done = 0
    for chunk in chunks:
        step = 0
        for step, microstep, rows in chunk:
            yield done + step, microstep, rows
        done += step


def _epoch(lengths: Sequence[int], options: DataOptions, epoch: int) -> Iterator[Forward]:
    order = shuffled(len(lengths), options.shuffle_seed, epoch)
    ordered: Iterator[int] = iter(lengths) if order is None else (lengths[i] for i in order)
    if options.packed:
        return _packed(ordered, options)
    return _rows(ordered, options) if options.max_tokens_per_gpu is None else _token_budget(ordered, options)


def shuffled(count: int, seed: int | None, epoch: int) -> array[int] | None:
    """The order of an epoch in training; None for the order of the file."""
    return None if seed is None else epoch_order(count, seed=seed, epoch=epoch)


def _rows(lengths: Iterator[int], options: DataOptions) -> Iterator[Forward]:
    """Batches of a fixed number of rows, rank after rank. The last one is shared out as far as it goes."""
    rows, world = options.batch_size or 1, options.world_size
    step = 0
    while chunk := list(itertools.islice(lengths, rows * world)):
        if len(chunk) < rows * world and options.drop_last:
            return
        step += 1
        yield (
            step,
            0,
            _for_ranks([_row(chunk[i : i + rows], options) for i in range(0, len(chunk), rows)], world),
        )


def _token_budget(lengths: Iterator[int], options: DataOptions) -> Iterator[Forward]:
    """Batches of consecutive samples with at most so many tokens after padding, and at most ``batch_size``
    rows.
    """
    budget, most = options.max_tokens_per_gpu or 0, options.batch_size
    step, longest = 0, 0
    ready: list[Row] = []
    chunk: list[int] = []
    for length in lengths:
        padded = _padded(max(longest, length), options)
        if chunk and ((len(chunk) + 1) * padded > budget or len(chunk) == most):
            ready.append(_row(chunk, options))
            chunk, longest = [], 0
            if len(ready) == options.world_size:
                step += 1
                yield step, 0, ready
                ready = []
        chunk.append(length)
        longest = max(longest, length)
    ready += [_row(chunk, options)] if chunk else []
    if ready and not (options.drop_last and len(ready) < options.world_size):
        yield step + 1, 0, _for_ranks(ready, options.world_size)


def _packed(lengths: Iterator[int], options: DataOptions) -> Iterator[Forward]:
    """Packed rows exactly as the trainer packs them: one row of batch dimension 1 per rank and microstep."""
    shape = RowShape(
        world=options.world_size,
        capacity=options.max_tokens_per_gpu or 0,
        multiple=options.pad_to_multiple_of or 8,
    )
    for step, batch in enumerate(_samples_of_steps(lengths, options), 1):
        for microstep, ranks in enumerate(pack(batch, shape)):
            sums = [shape.padded(sum(batch[i] for i in row)) if row else 0 for row in ranks]
            longest = max(sums)
            # one document that fills its row needs no mask between documents
            alone = [len(row) == 1 and batch[row[0]] == total for row, total in zip(ranks, sums, strict=True)]
            yield (
                step,
                microstep,
                [
                    (1, n or longest, FULL if single else PACKED)
                    for n, single in zip(sums, alone, strict=True)
                ],
            )


def _samples_of_steps(lengths: Iterator[int], options: DataOptions) -> Iterator[list[int]]:
    if options.batch_size is not None:
        while batch := list(itertools.islice(lengths, options.batch_size)):
            yield batch
        return
    room = (options.max_tokens_per_gpu or 0) * options.world_size
    chunk: list[int] = []
    total = 0
    for length in lengths:
        if chunk and total + length > room:
            yield chunk
            chunk, total = [], 0
        chunk.append(length)
        total += length
    if chunk:
        yield chunk


def _row(samples: Sequence[int], options: DataOptions) -> Row:
    length = _padded(max(samples), options)
    full = not options.attention_mask or min(samples) == length
    return len(samples), length, FULL if full else PADDED


def _padded(length: int, options: DataOptions) -> int:
    multiple = options.pad_to_multiple_of or 1
    padded = -(-length // multiple) * multiple
    limit = options.longest_allowed
    return padded if limit is None or padded <= limit else max(length, limit)


def _for_ranks(rows: list[Row], world_size: int) -> list[Row]:
    # A rank without samples repeats another's shape: the others wait for it anyway, and it brings no shape of
    # its own to compile.
    return rows + [rows[0]] * (world_size - len(rows))


def distinct_ranks(data: Data) -> dict[int, list[int]]:
    """Ranks that meet the very same shapes in the same order at the same steps: the first of them -> all of
    them.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for rank in data.ranks:
        groups.setdefault(tuple((s.key, s.step, s.microstep) for s in rank.shapes), []).append(rank.rank)
    return {ranks[0]: ranks for ranks in groups.values()}


def from_steps(steps: Iterable[Any], world_size: int) -> tuple[tuple[RankShapes, ...], int]:
    """Shapes of each rank of the trainer's own steps (``cftdiag.recipe.packing.Step``), for ``check --config``."""
    forwards = (
        (number, microstep, [(1, row.length, PACKED) for row in rows])
        for number, step in enumerate(steps, 1)
        for microstep, rows in enumerate(step.rows)
    )
    return collect(forwards, world_size)


def histogram(shapes: Iterable[Shape]) -> Mapping[int, int]:
    """Forwards by length, shortest first."""
    counts: dict[int, int] = {}
    for shape in shapes:
        counts[shape.length] = counts.get(shape.length, 0) + shape.visits
    return dict(sorted(counts.items()))
