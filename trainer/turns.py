"""What the assistant says in a rendered conversation, for templates that do not mark it.

Markers are put at the borders of the template's loop over the messages. What the loop writes for an assistant's
message, less the part that the generation prompt already gives, up to the end-of-turn token, is what the model
must say. A template that rewrites earlier turns is no obstacle, as nothing is compared with a shorter
conversation.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cftdiag.error_text import one_line

Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A conversation and what its template takes beside it."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    completion: int = -1
    """Index of the first message that completes what comes before; the last by default."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What the assistant says in one message, as characters of the rendered conversation."""

    start: int
    stop: int
    turn: int
    """Index of the message."""


def assistant_spans(tokenizer: Any, chat: Chat, text: str) -> list[Span]:
    """What the assistant says in ``text``, the rendered conversation. Raises ``ValueError`` when that cannot be
    told.
    """
    turns = _turns(tokenizer, chat)
    if turns is None or turns.text != text:
        return _by_prefix(tokenizer, chat, text)
    header = _header(tokenizer, chat)
    stops = _stop_tokens(tokenizer)
    spans = []
    for turn, (start, stop) in turns.spans:
        if chat.messages[turn]["role"] != "assistant":
            continue
        start += header.given(text[start:stop])
        trimmed = text[start:stop].rstrip()
        if trimmed.endswith(stops):
            stop = start + len(trimmed)
        # Some templates end the conversation, not the message, with the token that ends a text.
        rest = text[stop:].lstrip()
        if (
            (eos := getattr(tokenizer, "eos_token", None))
            and rest.startswith(eos)
            and not trimmed.endswith(eos)
        ):
            spans.append(Span(start=len(text) - len(rest), stop=len(text) - len(rest) + len(eos), turn=turn))
        elif not trimmed.endswith(stops):
            # Others end a turn by the token that the next one begins with.
            stop += max((len(token) for token in stops if text.startswith(token, stop)), default=0)
        spans.append(Span(start=start, stop=stop, turn=turn))
    missing = {i for i, m in enumerate(chat.messages) if m["role"] == "assistant"} - {s.turn for s in spans}
    if missing:
        return _by_prefix(tokenizer, chat, text)
    return sorted(spans, key=lambda span: span.start)


# Two characters of the private use area, which no text has a reason to hold.
_OPEN, _CLOSE = "\ue5d0", "\ue5d1"
_MARK = re.compile(f"{_OPEN}([se])([0-9]+){_CLOSE}")
_BEGIN_KEY, _END_KEY = "turn_begin_mark", "turn_end_mark"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Turns:
    text: str
    """Without the marks."""
    spans: tuple[tuple[int, tuple[int, int]], ...]
    """``(message, (start, stop))`` of what the template's loop writes, where that is not empty."""


def _turns(tokenizer: Any, chat: Chat, *, prompt: bool = False) -> _Turns | None:
    """Render with marks at the borders of each turn; None for a template without a loop over messages."""
    template = _instrumented(template_of(tokenizer, chat))
    if template is None:
        return None
    messages = [
        {**m, _BEGIN_KEY: f"{_OPEN}s{i}{_CLOSE}", _END_KEY: f"{_OPEN}e{i}{_CLOSE}"}
        for i, m in enumerate(chat.messages)
    ]
    try:
        rendered = apply(
            tokenizer,
            dataclasses.replace(chat, messages=messages),
            chat_template=template,
            add_generation_prompt=prompt,
        )
    except ValueError:
        return None  # a template that looks at the keys of a message
    text, marks, done = "", [], 0
    for found in _MARK.finditer(rendered):
        text += rendered[done : found.start()]
        marks.append((found[1], int(found[2]), len(text)))
        done = found.end()
    text += rendered[done:]
    if not marks:
        return None
    spans = []
    for (kind, turn, start), following in zip(marks, [*marks[1:], ("e", -1, len(text))], strict=True):
        if kind == "s" and following[2] > start:
            spans.append((turn, (start, following[2])))
    return _Turns(text=text, spans=tuple(spans))


_TAG = re.compile(
    r"""(?sx)
    \{\#.*?\#\}                                                              # a comment
    | \{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}
    | \{\{ (?: "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | (?!\}\}). )*? \}\}     # an expression
    | \{%(?P<left>[-+]?) \s* (?P<tag>for|endfor)\b
      (?P<rest> (?: "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | (?![-+]?%\}). )*? ) (?P<right>[-+]?)%\}
    """
)


@functools.lru_cache(maxsize=8)
def _instrumented(template: str) -> str | None:
    """The template with marks at both ends of each loop's body; a loop over something else than messages
    writes nothing there, because only messages have the keys. None without a loop.
    """
    pieces: list[str] = []
    variables: list[str | None] = []
    done = 0
    for found in _TAG.finditer(template):
        if found["tag"] is None:
            continue
        # A block of its own keeps the whitespace control of the tag beside it.
        if found["tag"] == "for":
            one = re.match(r"\s*([A-Za-z_]\w*)\s+in\b", found["rest"])
            variables.append(one[1] if one else None)
            if one:
                mark = f"{{% if true %}}{{{{ {one[1]}['{_BEGIN_KEY}'] }}}}{{% endif {found['right']}%}}"
                pieces += [template[done : found.end()], mark]
                done = found.end()
        elif variables and (name := variables.pop()):
            mark = f"{{%{found['left']} if true %}}{{{{ {name}['{_END_KEY}'] }}}}{{% endif %}}"
            pieces += [template[done : found.start()], mark]
            done = found.start()
    return "".join([*pieces, template[done:]]) if pieces else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """What precedes the assistant's own words in its message."""

    before: str
    """Of an earlier turn, such as a newline."""
    prompt: str
    """The generation prompt: at the latest where it ends the model begins to speak."""
    least: int
    """Characters of ``prompt`` that each message of the assistant begins with."""

    def given(self, turn: str) -> int:
        """How many characters of a message the model is given and need not say."""
        for before in dict.fromkeys((self.before, "")):
            rest = turn.removeprefix(before)
            if turn.startswith(before) and rest.startswith(self.prompt[: self.least]):
                return len(before) + (len(self.prompt) if rest.startswith(self.prompt) else self.least)
        return 0


_PROBE = "\ue5d2probe\ue5d2"


def _header(tokenizer: Any, chat: Chat) -> _Header:
    """Learned from two questions and answers: an earlier answer and the last may begin in different ways."""
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": _PROBE}
    asked = _turns(tokenizer, dataclasses.replace(chat, messages=[question]), prompt=True)
    answered = _turns(tokenizer, dataclasses.replace(chat, messages=[question, answer, question, answer]))
    if asked is None or answered is None or not asked.spans:
        return _Header(before="", prompt="", least=0)
    prompt = asked.text[asked.spans[-1][1][1] :]
    written = [answered.text[a:b].partition(_PROBE)[0] for turn, (a, b) in answered.spans if turn in (1, 3)]
    # The longest beginning of the prompt that all answers have as well: of what may be put before an answer (an
    # empty thought) the prompt may hold a part, or none.
    for length in range(len(prompt), 0, -1):
        head = prompt[:length]
        if written and all(head in text for text in written):
            # A common "<" is no header.
            if length < len(prompt) and not _ends_token(tokenizer, head):
                continue
            return _Header(before=written[-1][: written[-1].index(head)], prompt=prompt, least=length)
    return _Header(before="", prompt="", least=0)


def _ends_token(tokenizer: Any, text: str) -> bool:
    """Whether an added token is in ``text``, so that it is no accident when another has it too."""
    return any(str(token) in text for token in getattr(tokenizer, "added_tokens_decoder", {}).values())


def _stop_tokens(tokenizer: Any) -> tuple[str, ...]:
    special = [
        str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special
    ]
    return tuple(token for token in {*special, *getattr(tokenizer, "all_special_tokens", ())} if token)


def _by_prefix(tokenizer: Any, chat: Chat, text: str) -> list[Span]:
    """For a template that does not loop over the messages: a turn is what the conversation up to it adds to the
    one before it.
    """
    spans = []
    for turn, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        earlier = dataclasses.replace(chat, messages=chat.messages[:turn])
        before = apply(tokenizer, earlier, add_generation_prompt=True) if turn else ""
        after = apply(tokenizer, dataclasses.replace(chat, messages=chat.messages[: turn + 1]))
        if not text.startswith(after) or not after.startswith(before):
            raise ValueError(
                "the chat template rewrites earlier turns, so that the assistant's words cannot be told; give "
                "--chat-template FILE with {% generation %} around them, or `input_ids` and `labels`"
            )
        spans.append(Span(start=len(before), stop=len(after), turn=turn))
    return spans


def has_generation(template: str) -> bool:
    """Whether a template marks itself what the assistant says."""
    return re.search(r"\{%[-+]?\s*generation\b", template) is not None


def template_of(tokenizer: Any, chat: Chat) -> str:
    """The text of the template, of several the one that is used."""
    if not isinstance(tokenizer.chat_template, dict):
        return str(tokenizer.chat_template)
    try:
        return str(tokenizer.get_chat_template(tools=chat.tools))
    except ValueError as error:
        raise ValueError(
            f"the chat template cannot be chosen: {one_line(error, 300)}; give --chat-template FILE"
        ) from error


def apply(tokenizer: Any, chat: Chat, **options: Any) -> Any:
    """Through the chat template. Raises ``ValueError`` for whatever the template, a program of the model's
    authors, raises.
    """
    try:
        return tokenizer.apply_chat_template(
            list(chat.messages), tools=list(chat.tools) if chat.tools else None, **chat.template_kwargs,
            **{"tokenize": False, **options},
        )  # fmt: skip
    except Exception as error:
        raise ValueError(f"the chat template cannot render it: {one_line(error, 300)}") from error
