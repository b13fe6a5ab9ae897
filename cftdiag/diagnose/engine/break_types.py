"""What torch's types of graph break mean: one table of mechanisms, read from ``causes/break_types.toml``, and
which of torch's hints say what to do.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cftdiag.findings import Remedy

TABLE = Path(__file__).parents[1] / "causes" / "break_types.toml"

#: Sentences of torch that are no way out: its limits, its bugs, and a detour through another break.
_BOILERPLATE = re.compile(
    r"is fundamental|finding a workaround|may be possible to write|(?:report|submit|open|file) (?:an issue|a bug)"
    r"|Dynamo bug|difficult to debug|may result in an error when running in eager|double check that your code"
    r"|You can do this by removing the `torch\.compile`|caused by an earlier graph break|Resolving the earlier"
    r"|supposed to be reachable|does not really define|docs\.google\.com|fullgraph=False|This is not supported"
    r"|intentionally insert a graph break|force_eager|TORCH_COMPILE_DEBUG|graph break is expected",
    re.I,
)
#: Advice of torch that ends training: what is detached gets no gradient.
_HARMFUL = re.compile(r"\bdetach(?:\(\)| the)", re.I)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """Why one family of breaks happens, and what a person can do about it."""

    name: str
    cause: str
    """Public key of the cause."""
    remedies: tuple[Remedy, ...]
    says: str | None
    """What happens, where the cause's own sentence does not fit."""
    follows: bool
    """True for what torch says of a frame that another break has cut."""
    hints: bool
    """Whether torch's own hints may stand in where the table has no remedy."""


def of(gb_type: str | None) -> Mechanism | None:
    """The mechanism of a break of that type; None for a type that no table knows (a newer torch, or the name of
    an exception).
    """
    if not gb_type:
        return None
    types, patterns = _table()
    found = types.get(gb_type.strip())
    return found or next((m for pattern, m in patterns if pattern.fullmatch(gb_type.strip())), None)


def actions(hints: Iterable[str]) -> tuple[str, ...]:
    """Those of torch's hints that say what to do, without its stock sentences and without advice that ends
    training.
    """
    kept = []
    for hint in hints:
        sentences = [s for s in _SENTENCE.split(" ".join(hint.split())) if not _BOILERPLATE.search(s)]
        text = " ".join(sentences).strip()
        if text and not _HARMFUL.search(text):
            kept.append(text)
    return tuple(kept)


@functools.cache
def _table() -> tuple[dict[str, Mechanism], tuple[tuple[re.Pattern[str], Mechanism], ...]]:
    with TABLE.open("rb") as file:
        rows: list[Mapping[str, Any]] = tomllib.load(file)["mechanism"]
    types: dict[str, Mechanism] = {}
    patterns = []
    for row in rows:
        mechanism = Mechanism(
            name=row["name"],
            cause=row["cause"],
            remedies=tuple(_remedy(r) for r in row.get("remedies", ())),
            says=row.get("says"),
            follows=row.get("follows", False),
            hints=row.get("hints", True),
        )
        for gb_type in row.get("types", ()):
            assert gb_type not in types, f"{TABLE.name}: {gb_type!r} stands twice"
            types[gb_type.strip()] = mechanism
        patterns += [(re.compile(pattern), mechanism) for pattern in row.get("patterns", ())]
    return types, tuple(patterns)


def _remedy(row: str | Mapping[str, Any]) -> Remedy:
    return Remedy(summary=row) if isinstance(row, str) else Remedy(**row)
