"""Of what a compile cache's key is made, as torch's trace tells it, and which part of it keeps a lookup from the
nearest entry. Torch-free.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

#: ``[hash] example_inputs[3]: TensorMetadata(...)``
_PART = re.compile(r"\[(?P<hash>\w+)\] (?P<name>[^:\[\]]+(?:\[[^\]]*\])?):")

#: Lookups that are remembered of a cache.
_REMEMBERED = 256
#: Parts of a key that are named where it differs.
_NAMED = 6


def read(components: object) -> dict[str, str]:
    """Part of the key -> hash of its value, of torch's ``components``; empty where torch tells none."""
    found = {}
    for line in components if isinstance(components, list) else ():
        if match := _PART.match(str(line)):
            found[match["name"]] = match["hash"]
    return found


def grouped(parts: Mapping[str, str]) -> dict[str, str]:
    """The same with one short digest for all of ``example_inputs[..]``, of ``inductor_config[..]`` and so on."""
    groups: dict[str, list[str]] = {}
    for name, value in parts.items():
        groups.setdefault(name.partition("[")[0], []).append(f"{name} {value}")
    return {name: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8] for name, lines in groups.items()}


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[str, ...]:
    """Parts that are not the same in both keys, in the order of ``a``."""
    return tuple(name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name))


def shortened(names: Sequence[str]) -> tuple[str, ...]:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return tuple(names) if more <= 0 else (*names[:_NAMED], f"{more} more")


class Notes(Protocol):
    """Keys of earlier processes (:class:`cftdiag.cache_keys.Notes`)."""

    def known(self, cache: str) -> Sequence[tuple[str, Mapping[str, str]]]: ...

    def add(self, cache: str, key: str, compile_id: str, parts: Mapping[str, str]) -> None: ...


class Lookups:
    """The lookups of one process, by cache; with ``notes`` also those of the processes before it."""

    def __init__(self, notes: Notes | None = None) -> None:
        self._notes = notes
        self._met: dict[str, deque[tuple[str, Mapping[str, str]]]] = {}

    def add(
        self, cache: str, compile_id: str, parts: Mapping[str, str], key: str | None = None
    ) -> tuple[str, tuple[str, ...]] | None:
        """(name, differing parts) of the earlier lookup whose key is nearest to this one; None for the
        first, and where torch tells no parts. The name is its compile id, and of another process also when it was.
        """
        if not parts:
            return None
        if cache not in self._met:
            earlier = () if self._notes is None else self._notes.known(cache)
            self._met[cache] = deque(earlier, maxlen=_REMEMBERED)
        met = self._met[cache]
        if self._notes is not None and key is not None:
            self._notes.add(cache, key, compile_id, parts)
        near = min(
            ((len(names), i, other, names) for i, (other, known) in enumerate(met) for names in [differing(parts, known)]),
            default=None,
        )  # fmt: skip
        met.append((compile_id, parts))
        return None if near is None else (near[2], near[3])
