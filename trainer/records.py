"""JSONL training records: read, checked with their line numbers, tokenized, indexed. No torch."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cftdiag.recipe.packing import IGNORE, Sample
from trainer.chat import render


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """One sample: ``labels[i]`` belongs to ``input_ids[i]`` (not yet shifted), :data:`IGNORE` where there is
    no loss.
    """

    input_ids: array[int]
    labels: array[int]

    def sample(self, line: int) -> Sample:
        """Its length and loss tokens; the first label has no predecessor that could predict it."""
        return Sample(
            length=len(self.input_ids),
            loss_tokens=sum(label != IGNORE for label in self.labels[1:]),
            line=line,
        )


def parse(text: str, tokenizer: Any, vocabulary: int) -> Tokens:
    """One line of the file. Raises ``ValueError`` saying what is wrong with it.

    ``vocabulary`` is the number of rows of the model's embedding.
    """
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"a record is a JSON object, not {type(record).__name__}")
    if "input_ids" in record:
        ids, labels = record["input_ids"], record.get("labels")
        if labels is None:
            raise ValueError(
                "`input_ids` without `labels` (repeat the ids to learn all of them, -100 masks a position)"
            )
    elif "messages" in record:
        if tokenizer is None:
            raise ValueError(
                "`messages` needs a tokenizer, and the model has none; give `input_ids` and `labels`"
            )
        ids, labels = render(tokenizer, record["messages"])
    else:
        raise ValueError(
            f"neither `messages` nor `input_ids`; its keys are {', '.join(sorted(record)) or 'none'}"
        )
    _check_integers("input_ids", ids)
    _check_integers("labels", labels)
    if not ids:
        raise ValueError("empty `input_ids`")
    if len(ids) != len(labels):
        raise ValueError(f"{len(ids)} input_ids but {len(labels)} labels")
    for name, values in (("input_ids", ids), ("labels", [v for v in labels if v != IGNORE])):
        outside = next((v for v in values if not 0 <= v < vocabulary), None)
        if outside is not None:
            raise ValueError(
                f"`{name}` holds {outside}, outside the model's vocabulary of {vocabulary} (is it the model's own tokenizer?)"
            )
    return Tokens(input_ids=array("q", ids), labels=array("q", labels))


def _check_integers(name: str, values: Any) -> None:
    if not isinstance(values, list) or not all(
        isinstance(v, int) and not isinstance(v, bool) for v in values
    ):
        raise ValueError(f"`{name}` must be a list of integers")


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
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Reads the whole file once. ``report`` is told of every record that is skipped, dropped or cut.

        Raises ``ValueError`` for a missing or empty file, and for the first bad or over-long record where the
        policy is ``fatal``.
        """
        self._path = Path(path)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._capacity = capacity
        self._offsets: list[int] = []
        self._tokens: list[Tokens] | None = None if streaming else []
        self.samples: list[Sample] = []
        for line, offset, text in _lines(self._path):
            try:
                tokens = parse(text, tokenizer, vocabulary)
            except ValueError as error:
                if bad_records == "fatal":
                    raise ValueError(f"{path}:{line}: {error}; fix it or give --bad-records skip") from error
                report(f"{path}:{line}: skipped: {error}")
                continue
            length = len(tokens.input_ids)
            if length > capacity:
                if over_long == "fatal":
                    raise ValueError(
                        f"{path}:{line}: {length} tokens, a row holds {capacity}; raise --max-tokens-per-gpu or give --over-long"
                    )
                report(
                    f"{path}:{line}: {'dropped' if over_long == 'drop' else 'cut'}: {length} tokens, a row holds {capacity}"
                )
                if over_long == "drop":
                    continue
                tokens = self._cut(tokens)
            self.samples.append(tokens.sample(line))
            self._offsets.append(offset)
            if self._tokens is not None:
                self._tokens.append(tokens)
        if not self.samples:
            raise ValueError(f"{path} holds no usable record")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tokens:
        if self._tokens is not None:
            return self._tokens[index]
        with open(self._path, "rb") as file:
            file.seek(self._offsets[index])
            return self._cut(parse(file.readline().decode("utf-8"), self._tokenizer, self._vocabulary))

    def _cut(self, tokens: Tokens) -> Tokens:
        return Tokens(input_ids=tokens.input_ids[: self._capacity], labels=tokens.labels[: self._capacity])


class Subset:
    """Some samples of :class:`Records`, by index."""

    def __init__(self, records: Records, indices: list[int]) -> None:
        self._records = records
        self._indices = indices
        self.samples = [records.samples[i] for i in indices]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Tokens:
        return self._records[self._indices[index]]


def _lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """Line number, byte offset and text of every line that is not blank."""
    try:
        file = open(path, "rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        offset = 0
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield number, offset, raw.decode("utf-8", errors="replace")
            offset += len(raw)
