"""Texts without what differs between two equal runs: addresses, object ids, numbers of symbols, folders, line
numbers.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
#: ``___check_obj_id(x, 140234)`` and other ids of objects: no size of a tensor has as many digits.
_OBJECT_ID = re.compile(r"(?<=, )\d{9,}(?=\))|\bid=\d+|(?<=@)\d{6,}\b")
_SYMBOL = re.compile(r"\b([suz])(\d+)\b")
_RESUME = re.compile(r"\b(?:torch_dynamo|__)_?resume_(?:in_(\w+?)_)?at_\d+(?:_\d+)?")
_GENERATED = re.compile(r"\b(__compiled_fn|___stack|__subgraph|fwd_graph|graph)_?\d+(?:_[0-9a-f_]+)?\b")
_LINE = re.compile(r"(?<=\.py):\d+|\bline \d+\b")
_FOLDERS = re.compile(r"(?<![\w.])(?:~|\.{1,2})?/(?:[\w.+@-]+/)*(?=[\w.+@<-])")
_PACKAGES = re.compile(r"(?<![\w.])/\S*?/(?:site|dist)-packages/")


def plain(text: Any) -> str:
    """The text as it would be in any other equal run, on one line. Symbols are numbered in the order in which
    they come.
    """
    line = " ".join(str(text).split())
    line = _PACKAGES.sub("", line)
    line = _FOLDERS.sub("", line)
    line = _ADDRESS.sub("0x", line)
    line = _OBJECT_ID.sub("id", line)
    line = _RESUME.sub(lambda m: f"resume_in_{m[1]}" if m[1] else "resume", line)
    line = _GENERATED.sub(r"\1", line)
    line = _LINE.sub("", line)
    return symbols(line)


def symbols(line: str) -> str:
    """``s27*s4 < 9`` as ``s0*s1 < 9``: which number torch gives a symbol depends on what it met before."""
    numbers: dict[tuple[str, str], int] = {}

    def renumber(found: re.Match[str]) -> str:
        kind, number = found[1], found[2]
        known = sum(1 for other, _ in numbers if other == kind)
        return f"{kind}{numbers.setdefault((kind, number), known)}"

    return _SYMBOL.sub(renumber, line)


def file_name(file: str | None) -> str:
    """A file as any checkout has it: from the installed package on, else its name alone, with its folder for
    the names that every package has.
    """
    if not file:
        return ""
    path = file.replace("\\", "/")
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in path:
            return path.rpartition(marker)[2]
    parts = PurePath(path).parts
    return "/".join(parts[-2:] if parts[-1] in ("__init__.py", "__main__.py") else parts[-1:])
