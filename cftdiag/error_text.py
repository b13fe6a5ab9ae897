"""An exception's text in a message: on one line, shortened, never without the remedy that torch gives in it."""

from __future__ import annotations

import re

#: Exceptions whose text is often a bare name, which says nothing without the type.
_BARE = (KeyError, AttributeError, TypeError, SystemExit)

#: What a sentence has that says what to do: a setting or an environment variable of torch, or such a start.
_REMEDY = re.compile(
    r"torch\.[\w.]*config\.\w"
    r"|\bTORCH_LOGS\b|\bTORCH[A-Z_]*="
    r"|(?i:^\W*(?:To fix|Suggested fix|Hint:|Tip:|Please |Consider |Try ))"
)

#: Torch's invitation to report a bug. It stands in every error of Dynamo's and is no remedy.
_REPORTING = re.compile(r"for the internal stack trace|For even more developer context")

#: Between two sentences: after a stop (not that of a number in a list), or at the end of a line that the next
#: one does not go on with.
_BETWEEN = re.compile(r"(?<=[^\s\d][.!?])[ \t]+(?=\S)|[ \t]*\n(?![ \t]*[a-z`(])")

#: A sentence that announces a list.
_ANNOUNCES = re.compile(r":\s*$|:\s+(?:1\.|-)\s")


def one_line(error: BaseException, limit: int = 400, *, typed: bool = True) -> str:
    """``Type: text`` of an exception, on one line of about ``limit`` characters. Without ``typed``
    the type is left out where the text alone says what went wrong.
    """
    text = shorten(" ".join(str(error).split()), limit)
    if not text:
        return type(error).__name__
    return f"{type(error).__name__}: {text}" if typed or isinstance(error, _BARE) else text


def shorten(text: str, limit: int) -> str:
    """The first ``limit`` characters, ``...``, and whole, however long, each sentence after them that says
    what to do. A text within the limit comes back as it is.
    """
    if len(text) <= limit:
        return text
    cut, kept = max(limit - 3, 0), []
    for start, end in _remedies(text):
        if end <= cut:
            continue
        kept.append(text[start:end].strip())
        cut = min(cut, start)
    head = text[:cut].rstrip()
    parts = [f"{head}..."] if head else []
    parts += [sentence for sentence in dict.fromkeys(kept) if sentence not in head]
    return ("\n" if "\n" in text else " ").join(parts)


def remedies(text: str) -> tuple[str, ...]:
    """The sentences of a text that say what to do, each with the list that it announces, on one line each."""
    return tuple(dict.fromkeys(" ".join(text[start:end].split()) for start, end in _remedies(text)))


def _remedies(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences that say what to do. One that announces a list goes on to the end of its
    paragraph.
    """
    found: list[tuple[int, int]] = []
    for start, end in _sentences(text):
        sentence = text[start:end]
        inside = bool(found) and start < found[-1][1]
        if inside or not _REMEDY.search(sentence) or _REPORTING.search(sentence):
            continue
        if _ANNOUNCES.search(sentence):
            paragraph = text.find("\n\n", end)
            end = len(text) if paragraph < 0 else paragraph
        found.append((start, end))
    return found


def _sentences(text: str) -> list[tuple[int, int]]:
    bounds = [0]
    for between in _BETWEEN.finditer(text):
        bounds += [between.start(), between.end()]
    bounds.append(len(text))
    return [(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True) if text[a:b].strip()]
