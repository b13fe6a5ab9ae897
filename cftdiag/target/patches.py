"""Patch points: what of torch is replaced while a graph is lowered, each one probed first and put back
afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from cftdiag.target.errors import TargetUnavailable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patch:
    """``module:attribute.path`` and what stands there while a graph is lowered."""

    point: str
    new: Any
    parameters: tuple[str, ...] = ()
    """Leading parameters that the replaced function must have for the replacement to be called rightly."""
    required: bool = True
    """False for answers that some versions of torch do not ask for."""

    def find(self) -> tuple[Any, str]:
        """(owner, attribute name); ``LookupError`` with one line when this torch has no such point."""
        module, _, path = self.point.partition(":")
        *owners, name = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for part in owners:
                owner = getattr(owner, part)
            current = inspect.getattr_static(owner, name)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"{self.point} does not exist in this torch ({error})") from error
        if self.parameters:
            names = tuple(inspect.signature(getattr(current, "__func__", current)).parameters)
            if names[: len(self.parameters)] != self.parameters:
                raise LookupError(f"{self.point} takes {names}, expected {self.parameters} first")
        return owner, name


def probe(patches: Sequence[Patch]) -> list[tuple[str, bool, str]]:
    """(point, found, detail) of each patch; a point that is not required counts as found when it is missing."""
    rows = []
    for patch in patches:
        try:
            patch.find()
            rows.append((patch.point, True, "found"))
        except LookupError as error:
            rows.append((patch.point, not patch.required, str(error)))
    return rows


@contextlib.contextmanager
def applied(target: str, patches: Sequence[Patch]) -> Iterator[None]:
    """All patches in place inside the block; raises :class:`TargetUnavailable` and changes nothing when a
    required point is missing.
    """
    found = []
    for patch in patches:
        try:
            found.append((patch, *patch.find()))
        except LookupError as error:
            if patch.required:
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
