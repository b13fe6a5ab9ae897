"""Patch points: what of torch is replaced while a graph is lowered, each one probed first and put back
afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from cftdiag.target.errors import TargetUnavailable
from cftdiag.torch_private.names import Name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
    """A name of torch and what stands there while a graph is lowered."""

    point: Name
    new: Any

    def find(self) -> tuple[Any, str]:
        """(owner, attribute name); ``LookupError`` with one line when this torch has no such point."""
        wrong = self.point.check()
        if wrong is not None:
            raise LookupError(wrong)
        return self.point.owner()


def probe(patches: Sequence[Patch]) -> list[tuple[str, bool, str]]:
    """(point, found, detail) of each patch; a point that is not needed counts as found when it is missing."""
    rows = []
    for patch in patches:
        try:
            patch.find()
            rows.append((patch.point.point, True, "found"))
        except LookupError as error:
            rows.append((patch.point.point, not patch.point.needed, str(error)))
    return rows


@contextlib.contextmanager
def applied(target: str, patches: Sequence[Patch]) -> Iterator[None]:
    """All patches in place inside the block; raises :class:`TargetUnavailable` and changes nothing when a
    needed point is missing.
    """
    found = []
    for patch in patches:
        try:
            found.append((patch, *patch.find()))
        except LookupError as error:
            if patch.point.needed:
                raise TargetUnavailable(target, str(error)) from error
    with contextlib.ExitStack() as stack:
        for patch, owner, name in found:
            stack.enter_context(mock.patch.object(owner, name, patch.new))
        yield


def clear_caches(points: Sequence[str]) -> None:
    """Forget what torch remembers about the device; names that a version lacks are passed over."""
    for point in points:
        module, _, path = point.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            continue
        clear: Callable[[], None] | None = getattr(found, "cache_clear", None)
        if clear is not None:
            clear()
