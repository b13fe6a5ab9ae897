"""Training records of a file or a directory: read, checked with their line numbers, tokenized, indexed. No
torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cftdiag.recipe.packing import IGNORE, Sample
from trainer.rows import Reader, Tokens
from trainer.sources import open_rows
from trainer.tokens import stored

__all__ = ["IGNORE", "Records", "Subset", "Tokens"]


class Records:
    """The samples of a file: an index of all of them, and their tokens in memory or, with ``streaming``, read
    from the file when asked for.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any,
        *,
        vocabulary: int,
        capacity: int,
        bad_records: str = "fatal",
        over_long: str = "fatal",
        streaming: bool = False,
        train_on: str | None = None,
        objective: str = "sft",
        cache: Path | None = None,
        write_cache: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Reads the whole file once, or its tokens in ``cache``, where they are put with ``write_cache``.
        ``report`` is told of every record that is skipped, dropped or cut.

        Raises ``ValueError`` for a missing or empty file, and for the first bad or over-long record where the
        policy is ``fatal``.
        """
        self._path = Path(path)
        self._reader = Reader(
            tokenizer=tokenizer, vocabulary=vocabulary, train_on=train_on, objective=objective
        )
        self._rows = (
            open_rows(self._path)
            if cache is None
            else stored(self._path, self._reader, cache, write=write_cache, say=report)
        )
        self._capacity = capacity
        self._skipped: list[tuple[int, str]] = []
        self._prompts = objective == "grpo"
        self._bad_records, self._over_long, self._report = bad_records, over_long, report
        self._places: list[tuple[int, int]] = []
        """Where a sample's row is, and its first token in it."""
        self._tokens: list[Tokens] | None = None if streaming else []
        self.samples: list[Sample] = []
        digest = hashlib.sha256()
        for line, place, row in self._rows:
            tokens = self._read(line, row)
            if tokens is None:
                continue
            for start in self._starts(line, len(tokens.input_ids)):
                part = tokens.part(start, start + capacity)
                self.samples.append(self._sample(part, line))
                self._places.append((place, start))
                for values in (
                    array("q", [line, len(part.input_ids), *([part.second] if part.second else [])]),
                    part.input_ids,
                    part.labels,
                ):
                    digest.update(values.tobytes())
                if self._tokens is not None:
                    self._tokens.append(part)
        if not self.samples:
            raise ValueError(f"{path} holds no usable record{self._all_bad()}")
        self._tell_of_masked()
        self.digest = digest.hexdigest()[:16]
        """Of the contents: tokens, labels and lines, in order."""

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tokens:
        if self._tokens is not None:
            return self._tokens[index]
        place, start = self._places[index]
        sample = self.samples[index]
        try:
            part = self._rows.tokens(self._reader, self._rows[place]).part(start, start + self._capacity)
            if self._sample(part, sample.line) == sample:
                return part
            problem = "another length"
        except ValueError as error:
            problem = str(error)
        raise ValueError(f"{self._path}:{sample.line}: changed while it was trained on: {problem}")

    def record(self, index: int) -> dict[str, Any]:
        """The row that a sample was made from, as it is in the data; only without a cache of tokens."""
        return self._rows.record(self._rows[self._places[index][0]])

    def _sample(self, part: Tokens, line: int) -> Sample:
        sample = part.sample(line)
        # A prompt is learned from whatever its own labels are: by what is answered.
        return dataclasses.replace(sample, loss_tokens=sample.length) if self._prompts else sample

    def _tell_of_masked(self) -> None:
        """Samples that train nothing: their number, once. Raises ``ValueError`` when there are no others."""
        masked = [sample for sample in self.samples if not sample.loss_tokens]
        why = "every label that has a token before it is masked"
        if len(masked) == len(self.samples):
            raise ValueError(
                f"{self._path}: none of its {len(masked)} samples has a token to learn: {why}. Look at the labels, at "
                "what --train-on takes and the chat template marks, and at what --over-long cuts"
            )
        if masked:
            self._report(
                f"{self._path}: {len(masked)} of {len(self.samples)} samples have no token to learn, the first in line "
                f"{masked[0].line}: {why}; they take room in rows and teach nothing"
            )

    def _read(self, line: int, row: Any) -> Tokens | None:
        try:
            return self._rows.tokens(self._reader, row)
        except ValueError as error:
            if self._bad_records == "fatal":
                raise ValueError(
                    f"{self._path}:{line}: {error}; fix it or give --bad-records skip"
                ) from error
            self._skipped.append((line, str(error)))
            self._report(f"{self._path}:{line}: skipped: {error}")
            return None

    def _all_bad(self) -> str:
        """What was wrong, where nothing is left to train on."""
        if not self._skipped:
            return ""
        line, problem = self._skipped[0]
        return f": {len(self._skipped)} are bad, the first in line {line}: {problem}"

    def _starts(self, line: int, length: int) -> list[int]:
        """First tokens of the samples that a row becomes: one as a rule."""
        if length <= self._capacity:
            return [0]
        text = f"{self._path}:{line}: {{}}{length} tokens, a row holds {self._capacity}"
        if self._over_long == "split":
            return list(range(0, length, self._capacity))  # as is usual for long texts: nothing to tell
        if self._over_long == "fatal":
            raise ValueError(f"{text.format('')}; raise --max-tokens-per-gpu or give --over-long")
        self._report(text.format("dropped: " if self._over_long == "drop" else "cut: "))
        return [0] if self._over_long == "truncate" else []


class Subset:
    """Some samples of :class:`Records`, by index."""

    def __init__(self, records: Records, indices: list[int]) -> None:
        self._records = records
        self._indices = indices
        self.samples = [records.samples[i] for i in indices]
        self.digest = hashlib.sha256(records.digest.encode() + array("q", indices).tobytes()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Tokens:
        return self._records[self._indices[index]]

    def record(self, index: int) -> dict[str, Any]:
        """As that of :class:`Records`."""
        return self._records.record(self._indices[index])
