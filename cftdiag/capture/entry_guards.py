"""What a cached graph asks of a call, as a person reads it: guards on arguments and on what the block's code reads from
them, without those on the types, parameters and modules that no run changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import CodeType

from cftdiag import guards
from cftdiag.capture.cache_entries import entries

#: Guards of one graph that are told; what is left out is counted.
MOST = 40

#: Kinds of guards that every graph has, and that say nothing about a call.
_ALWAYS = frozenset({"type", "marking", "state"})
_OF_A_MODULE = re.compile(r"\b_(?:parameters|buffers|modules)\b(?!.*\.size\(\))|\.__dict__\)$")


def entry_guards(codes: Iterable[CodeType]) -> dict[str, tuple[str, ...]]:
    """Compile id -> guards of its entry, in torch's order of checking; entries that Dynamo has dropped are missing."""
    return {entry.compile_id: told(entry.texts()) for code in codes for entry in entries(code) if entry.valid}


def told(texts: Iterable[str]) -> tuple[str, ...]:
    """The guards among torch's texts that a call can fail, shortened, each once; a last line counts the rest."""
    found = list(dict.fromkeys(short for text in texts if (short := _short(text)) is not None))
    left = len(found) - MOST
    return (*found[:MOST], f"and {left} more") if left > 0 else tuple(found)


def _short(text: str) -> str | None:
    tensor = guards.tensor_check(text)
    if tensor is not None:
        if _OF_A_MODULE.search(tensor.source):
            return None
        size = ", ".join("any" if n is None else str(n) for n in tensor.size)
        grad = ", requires_grad" if tensor.requires_grad else ""
        kind = "" if tensor.cls == "Tensor" else f"{tensor.cls} "
        return f"{guards.local_names(tensor.source)}: {kind}{tensor.dtype} [{size}]{grad}"
    read = guards.read(text)
    if read.kind in _ALWAYS or read.root == "G" or _OF_A_MODULE.search(text) or "math.isnan(" in text:
        return None
    return " ".join(guards.local_names(text).split())[:200]
