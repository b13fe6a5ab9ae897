"""From chat messages to token ids and labels: only what the assistant said is learned. A template marks it with
``{% generation %}``, or it is found (:mod:`trainer.turns`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from cftdiag.recipe.packing import IGNORE
from trainer.turns import Chat, Message, apply, assistant_spans, has_generation, template_of

_MEDIA = frozenset({"image", "video", "audio"})


def check_messages(messages: Any, name: str = "messages") -> None:
    """Raise ``ValueError`` for what is no conversation."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"`{name}` must be a list of {{role, content}} objects")
    for number, message in enumerate(messages):
        good = isinstance(message, dict) and isinstance(message.get("role"), str)
        content = message.get("content") if good else None
        # The content of a message that only calls tools may be left out; a list holds parts of it.
        good = good and (
            isinstance(content, str | list) or (content is None and bool(message.get("tool_calls")))
        )
        if not good:
            raise ValueError(f"message {number} must be an object with a text `role` and a text `content`")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str) or (kind == "text" and not isinstance(part.get("text"), str)):
                raise ValueError(
                    f"message {number}: a part of `content` is an object with a `type`, such as text"
                )
            if _MEDIA.intersection(kind.split("_")):
                raise ValueError(f"message {number} has a part of type {kind}; only texts are trained on")


def set_template(tokenizer: Any, path: str | None) -> None:
    """Give the tokenizer the chat template in a file. Raises ``ValueError`` when it cannot be
    read, and names the line where it is no template.
    """
    if path is None:
        return
    if tokenizer is None:
        raise ValueError("chat-template needs a tokenizer, and the model has none")
    try:
        tokenizer.chat_template = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"cannot read the chat template {path}: {why}") from error
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise ValueError(
            f"{path}:{error.lineno}: {error.message}; a chat template is written in Jinja"
        ) from error
    except Exception:  # noqa: BLE001 - what it says of this message is its own affair
        return


def render(tokenizer: Any, chat: Chat, train_on: str = "assistant") -> tuple[list[int], list[int]]:
    """``(input_ids, labels)`` of a conversation through the tokenizer's chat template. ``train_on`` is
    ``assistant`` (every assistant's message), ``completion`` (only those of the completion) or ``all``; labels
    are -100 elsewhere.

    Raises ``ValueError`` for a tokenizer without a template, a template that cannot render it, or one that does
    not let the assistant's part be told.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template; give --chat-template FILE, or `input_ids` and `labels`"
        )
    chat, text = rendered(tokenizer, chat)
    _check_text(text)
    if train_on == "all":
        ids = encode(tokenizer, text)[0]
        return ids, list(ids)
    first = chat.completion % len(chat.messages)
    if train_on == "completion" and all(m["role"] != "assistant" for m in chat.messages[first:]):
        raise ValueError("the assistant does not speak last, so that there is no completion to train on")
    marked = has_generation(template_of(tokenizer, chat))
    spans = None if marked and train_on == "assistant" else assistant_spans(tokenizer, chat, text)
    if train_on == "completion" and spans is not None:
        spans = [span for span in spans if span.turn >= first]
    if not marked:
        assert spans is not None
        return mask(tokenizer, text, [(span.start, span.stop) for span in spans])
    encoded = apply(tokenizer, chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids, learned = list(encoded["input_ids"]), list(encoded["assistant_masks"])
    if spans is not None:
        inside = mask(tokenizer, text, [(span.start, span.stop) for span in spans])[1]
        learned = [token and label != IGNORE for token, label in zip(learned, inside, strict=True)]
    return ids, [token if yes else IGNORE for token, yes in zip(ids, learned, strict=True)]


def rendered(tokenizer: Any, chat: Chat, **options: Any) -> tuple[Chat, str]:
    """The conversation in the form that the template takes, and its text: templates of models that also see
    want a list of parts and write nothing for a plain text; those of others write a list as Python prints it.
    ``options`` are the template's. Raises ``ValueError`` when no form gives what the assistant says.
    """
    problem = "the chat template leaves out what the assistant says; give another by --chat-template FILE"
    second: tuple[Chat, str] | None = None
    for change in (lambda content: content, _parts, _plain):
        messages = [{**m, "content": change(m["content"])} if m.get("content") else m for m in chat.messages]
        form = dataclasses.replace(chat, messages=messages)
        try:
            text = apply(tokenizer, form, **options)
        except ValueError as error:
            if messages == list(chat.messages):
                problem = str(error)
            continue
        if any(_is_printed(m, text) for m in messages):
            continue
        if all(_is_in(m, text) for m in messages):
            return form, text
        # What others say a template may put in its own words.
        if second is None and all(_is_in(m, text) for m in messages if m["role"] == "assistant"):
            second = form, text
    if second is None:
        raise ValueError(problem)
    return second


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _plain(content: Any) -> Any:
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "".join(part["text"] for part in content)


def _is_printed(message: Message, text: str) -> bool:
    """Whether the list of parts itself was written, instead of what is in it."""
    content = message.get("content")
    return isinstance(content, list) and any(form in text for form in (str(content), json.dumps(content)))


def _is_in(message: Message, text: str) -> bool:
    content = message.get("content") or ""
    said = [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
    # A template may leave out the thought of an earlier turn, and blanks.
    return all(part.rpartition("</think>")[2].strip() in text for part in said)


def mask(
    tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], *, special: bool = False
) -> tuple[list[int], list[int]]:
    """``(input_ids, labels)`` of ``text``, of which the tokens that reach into ``spans`` are learned."""
    ids, offsets = encode(tokenizer, text, special=special)
    labels = [IGNORE] * len(ids)
    for start, stop in spans:
        for i, (first, last) in enumerate(offsets):
            if first < stop and last > start:
                labels[i] = ids[i]
    return ids, labels


def encode(tokenizer: Any, text: str, *, special: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids and the characters that each stands for; ``special`` adds what the tokenizer puts around a text.
    Raises ``ValueError`` for a tokenizer that cannot tell.
    """
    _check_text(text)
    try:
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    except NotImplementedError as error:
        raise ValueError(
            "the tokenizer does not tell which characters a token stands for; use its fast version, or give `input_ids` and `labels`"
        ) from error
    return list(encoded["input_ids"]), [(int(a), int(b)) for a, b in encoded["offset_mapping"]]


def _check_text(text: str) -> None:
    """JSON may hold half of a character, which no tokenizer takes."""
    if bad := next((c for c in text if "\ud800" <= c <= "\udfff"), None):
        raise ValueError(f"a lone surrogate (U+{ord(bad):04X}) is no text")
