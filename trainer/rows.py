"""From one row of training data to its tokens and labels: the four kinds of rows. No torch."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Mapping
from typing import Any

from cftdiag.recipe.packing import IGNORE, Sample
from trainer.chat import check_messages, encode, mask, render, rendered
from trainer.turns import Chat

TRAIN_ON = ("all", "assistant", "completion")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """One sample: ``labels[i]`` belongs to ``input_ids[i]`` (not yet shifted), :data:`IGNORE` where there is
    no loss.
    """

    input_ids: array[int]
    labels: array[int]
    second: int = 0
    """Where the second of two documents begins (a pair of answers); 0: it is one."""

    @property
    def documents(self) -> list[tuple[array[int], array[int]]]:
        """Tokens and labels of each document; nobody sees beyond its own."""
        if not self.second:
            return [(self.input_ids, self.labels)]
        return [
            (self.input_ids[part], self.labels[part])
            for part in (slice(self.second), slice(self.second, None))
        ]

    def sample(self, line: int) -> Sample:
        """Its length and loss tokens; the first label has no predecessor that could predict it."""
        return Sample(
            length=len(self.input_ids),
            loss_tokens=sum(label != IGNORE for _, labels in self.documents for label in labels[1:]),
            line=line,
        )

    def part(self, start: int, stop: int) -> Tokens:
        """Some of it; a pair is never cut."""
        if self.second:
            return self
        return Tokens(input_ids=self.input_ids[start:stop], labels=self.labels[start:stop])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """What turns rows into tokens."""

    tokenizer: Any
    """None when the model has none."""
    vocabulary: int
    """Rows of the model's embedding."""
    train_on: str | None = None
    """One of :data:`TRAIN_ON`; None: by the kind of the row."""
    objective: str = "sft"
    """One of :data:`cftdiag.options.OBJECTIVES`: what a row has to hold."""

    def line(self, raw: bytes) -> Tokens:
        """One line of JSON. Raises ``ValueError`` saying what is wrong with it."""
        try:
            record = json.loads(raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: byte {raw[error.start]:#x} at {error.start}") from error
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from error
        except RecursionError as error:
            raise ValueError("not usable: nested too deeply") from error
        if not isinstance(record, dict):
            raise ValueError(f"a record is a JSON object, not {type(record).__name__}")
        return self.row(record)

    def row(self, record: Mapping[str, Any]) -> Tokens:
        """One row. Raises ``ValueError`` saying what is wrong with it."""
        try:
            if self.objective == "dpo":
                return self._pair(record)
            if self.objective == "grpo":
                ids = self._prompt(record)
                return self._checked(ids, list(ids))
            ids, labels = self._ids_and_labels(record)
        except RecursionError as error:
            raise ValueError("not usable: nested too deeply") from error
        return self._checked(ids, labels)

    def _checked(self, ids: list[int], labels: list[int]) -> Tokens:
        _check_integers("input_ids", ids)
        _check_integers("labels", labels)
        if not ids:
            raise ValueError("empty `input_ids`")
        if len(ids) != len(labels):
            raise ValueError(f"{len(ids)} input_ids but {len(labels)} labels")
        for name, values in (("input_ids", ids), ("labels", [v for v in labels if v != IGNORE])):
            outside = next((v for v in values if not 0 <= v < self.vocabulary), None)
            if outside is not None:
                raise ValueError(
                    f"`{name}` holds {outside}, outside the model's vocabulary of {self.vocabulary} (is it the model's own tokenizer?)"
                )
        return Tokens(input_ids=array("q", ids), labels=array("q", labels))

    def _ids_and_labels(self, record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        if self.objective == "pretrain" and "text" not in record and "input_ids" not in record:
            raise ValueError(
                f"a row of objective pretrain has `text`; its keys are {_keys(record)} (conversations and completions "
                "are rows of --objective sft)"
            )
        if "input_ids" in record:
            ids, labels = record["input_ids"], record.get("labels")
            if labels is None:
                self._refuse_part("`input_ids` without `labels`")
                labels = ids
            return ids, labels
        kind = next((key for key in ("messages", "prompt", "text") if key in record), None)
        if kind is None:
            raise ValueError(
                "neither `messages`, `prompt` and `completion`, `text` nor `input_ids`; its keys are "
                f"{_keys(record)}"
            )
        if self.tokenizer is None:
            raise ValueError(
                f"`{kind}` needs a tokenizer, and the model has none; give `input_ids` and `labels`"
            )
        if kind == "text":
            self._refuse_part("`text`")
            return self._text("", _text_of(record, "text"))
        if kind == "prompt":
            return self._completion(record)
        check_messages(record["messages"])
        chat = Chat(messages=record["messages"], **_template_options(record))
        return render(self.tokenizer, chat, self.train_on or "assistant")

    def _prompt(self, record: Mapping[str, Any]) -> list[int]:
        """What an answer is written to."""
        if "prompt" not in record:
            raise ValueError(f"a row of objective grpo has `prompt`; its keys are {_keys(record)}")
        if self.tokenizer is None:
            raise ValueError("`prompt` needs a tokenizer, and the model has none")
        if isinstance(record["prompt"], str):
            return encode(self.tokenizer, record["prompt"], special=True)[0]
        check_messages(record["prompt"], "prompt")
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                "the tokenizer has no chat template; give --chat-template FILE, or `prompt` as a text"
            )
        chat = Chat(messages=record["prompt"], **_template_options(record))
        return encode(self.tokenizer, rendered(self.tokenizer, chat, add_generation_prompt=True)[1])[0]

    def _pair(self, record: Mapping[str, Any]) -> Tokens:
        """The chosen answer and the rejected one, each after the prompt."""
        if missing := [name for name in ("chosen", "rejected") if name not in record]:
            raise ValueError(
                f"a row of objective dpo has `prompt`, `chosen` and `rejected`, this one no `{missing[0]}`; its keys are "
                f"{_keys(record)}"
            )
        if self.tokenizer is None:
            raise ValueError("`chosen` needs a tokenizer, and the model has none")
        if record["chosen"] == record["rejected"]:
            raise ValueError("`chosen` and `rejected` are the same, so that there is nothing to prefer")
        if "prompt" not in record:
            record = {**record, **_common_prompt(record["chosen"], record["rejected"])}
        both = []
        for name in ("chosen", "rejected"):
            row = {**record, "completion": record[name]}
            try:
                both.append(self._checked(*self._completion(row)))
            except ValueError as error:
                raise ValueError(str(error).replace("`completion`", f"`{name}`")) from error
        for name, answer in zip(("chosen", "rejected"), both, strict=True):
            if not answer.sample(0).loss_tokens:
                raise ValueError(
                    f"`{name}` has no token to learn: the answer is empty, or nothing comes before it"
                )
        chosen, rejected = both
        return Tokens(
            input_ids=chosen.input_ids + rejected.input_ids,
            labels=chosen.labels + rejected.labels,
            second=len(chosen.input_ids),
        )

    def _completion(self, record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        if "completion" not in record:
            raise ValueError("`prompt` without `completion`")
        train_on = self.train_on or "completion"
        if isinstance(record["prompt"], str):
            if train_on == "assistant":
                raise ValueError(
                    "`prompt` and `completion` are texts, in which nobody speaks; give --train-on completion or all"
                )
            prompt, completion = _text_of(record, "prompt"), _text_of(record, "completion")
            return (
                self._text("", prompt + completion) if train_on == "all" else self._text(prompt, completion)
            )
        for name in ("prompt", "completion"):
            check_messages(record[name], name)
        chat = Chat(
            messages=[*record["prompt"], *record["completion"]],
            completion=len(record["prompt"]),
            **_template_options(record),
        )
        return render(self.tokenizer, chat, train_on)

    def _text(self, given: str, learned: str) -> tuple[list[int], list[int]]:
        """A text that ends with the token that ends a text; ``given`` is not learned."""
        if given:
            ids, labels = mask(
                self.tokenizer, given + learned, [(len(given), len(given) + len(learned))], special=True
            )
        else:
            ids = encode(self.tokenizer, learned, special=True)[0]
            labels = list(ids)
        end = getattr(self.tokenizer, "eos_token_id", None)
        if end is not None:
            if ids and ids[-1] == end:
                labels[-1] = end
            else:
                ids, labels = [*ids, end], [*labels, end]
        return ids, labels

    def _refuse_part(self, kind: str) -> None:
        if self.train_on not in (None, "all"):
            raise ValueError(f"{kind} has no part that could be told; leave out --train-on {self.train_on}")


def _template_options(record: Mapping[str, Any]) -> dict[str, Any]:
    """What else a template is given, in TRL's names."""
    tools, options = record.get("tools"), record.get("chat_template_kwargs")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError("`tools` must be a list of JSON schemas")
    if options is not None and not isinstance(options, dict):
        raise ValueError("`chat_template_kwargs` must be an object")
    return {"tools": tools or None, "template_kwargs": options or {}}


def _common_prompt(chosen: Any, rejected: Any) -> dict[str, Any]:
    """The messages that two conversations begin with, and what each goes on with. Raises ``ValueError``."""
    for name, messages in (("chosen", chosen), ("rejected", rejected)):
        if isinstance(messages, str):
            raise ValueError("`chosen` and `rejected` are texts without a `prompt`")
        check_messages(messages, name)
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    if not same:
        raise ValueError("there is no `prompt`, and `chosen` and `rejected` begin with other messages")
    return {"prompt": chosen[:same], "chosen": chosen[same:], "rejected": rejected[same:]}


def _keys(record: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, record))) or "none"


def _text_of(record: Mapping[str, Any], name: str) -> str:
    if not isinstance(record[name], str):
        raise ValueError(f"`{name}` must be a text, not {type(record[name]).__name__}")
    return record[name]


def _check_integers(name: str, values: Any) -> None:
    if not isinstance(values, list) or not all(
        isinstance(v, int) and not isinstance(v, bool) for v in values
    ):
        raise ValueError(f"`{name}` must be a list of integers")
