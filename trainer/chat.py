"""From chat messages to token ids and labels: only what the assistant said is learned."""

from __future__ import annotations

from typing import Any

_IGNORE = -100


def render(tokenizer: Any, messages: Any) -> tuple[list[int], list[int]]:
    """``(input_ids, labels)`` of a conversation through the tokenizer's chat template; labels are -100
    outside the assistant's turns.

    Raises ``ValueError`` for malformed messages, a tokenizer without a template, or a template that cannot be
    cut into turns.
    """
    _check(messages)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("the tokenizer has no chat template; give `input_ids` and `labels`")
    if "{% generation" in tokenizer.chat_template or "{%- generation" in tokenizer.chat_template:
        encoded = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = list(encoded["input_ids"]), encoded["assistant_masks"]
        return ids, [token if learned else _IGNORE for token, learned in zip(ids, mask, strict=True)]
    return _by_prefix(tokenizer, messages)


def _check(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list of {role, content} objects")
    for number, message in enumerate(messages):
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("role"), str)
            or not isinstance(message.get("content"), str)
        ):
            raise ValueError(f"message {number} must be an object with a text `role` and a text `content`")


def _by_prefix(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """For templates without generation marks: a turn is what the conversation up to it adds to the
    conversation before it.
    """
    ids = _encode(tokenizer, messages, prompt=False)
    labels = [_IGNORE] * len(ids)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _encode(tokenizer, messages[:turn], prompt=True) if turn else []
        after = _encode(tokenizer, messages[: turn + 1], prompt=False)
        if ids[: len(after)] != after or after[: len(before)] != before:
            raise ValueError(
                "the chat template rewrites earlier turns, so that the assistant's tokens cannot be told; give `input_ids` and `labels`"
            )
        labels[len(before) : len(after)] = after[len(before) :]
    return ids, labels


def _encode(tokenizer: Any, messages: list[dict[str, str]], *, prompt: bool) -> list[int]:
    return list(
        tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=prompt, return_dict=True
        )["input_ids"]
    )
