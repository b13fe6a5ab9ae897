"""A private name of torch: where it is, what must be true of it, and what is lost without it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from cftdiag.errors import EnvironmentUnfit

#: What a name serves. The first five are what a depth of the check needs, the others are features.
Part = Literal[
    "record", "trace", "joint", "codegen for a GPU", "codegen for the CPU",
    "blocks", "guards", "monitor", "kernels", "remedies", "world", "trainer", "rehearsal",
]  # fmt: skip

_UNSET = object()


class TorchLacks(EnvironmentUnfit):
    """This torch has no such name, or another thing under it; one line, exit code 3."""


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """``module:attribute.path`` of a private thing of torch, and what relies on it."""

    point: str
    part: Part
    lost: str
    """What is lost without it, as the end of a sentence."""
    _: dataclasses.KW_ONLY
    alias: str = ""
    """Name under which the door hands it out; by default the last part without its underscores."""
    parameters: tuple[str, ...] = ()
    """Parameters that the function must have, in any order."""
    leading: tuple[str, ...] = ()
    """Parameters that must come first, in this order."""
    reads: tuple[str, ...] = ()
    """Local variables that are read from a frame of the function."""
    equals: Any = _UNSET
    """Value that it must have."""
    needed: bool = True
    """False for what some versions of torch lack and what something else stands in for."""
    differs: str = ""
    """Versions of torch in which it is known to be another."""

    @property
    def called(self) -> str:
        """The name that a caller imports."""
        return self.alias or self.point.replace(":", ".").rpartition(".")[2].lstrip("_")

    def owner(self) -> tuple[Any, str]:
        """(object that holds it, attribute name): what a patch needs. ``LookupError`` with one line."""
        module, _, path = self.point.partition(":")
        *owners, name = path.split(".")
        try:
            found: Any = importlib.import_module(module)
            for part in owners:
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"{self.point} does not exist in this torch ({error})") from error
        return found, name

    def find(self) -> Any:
        """The thing itself. ``LookupError`` with one line when this torch has none."""
        owner, name = self.owner()
        try:
            return getattr(owner, name)
        except AttributeError as error:
            raise LookupError(f"{self.point} does not exist in this torch ({error})") from error

    def get(self) -> Any:
        """The thing itself, for those who cannot do without: raises :class:`TorchLacks`."""
        try:
            return self.find()
        except LookupError as error:
            raise TorchLacks(
                f"{error}: {self.lost}; run cftdiag doctor to see what works with this torch"
            ) from error

    def check(self) -> str | None:
        """What is wrong with it in this torch, None when it is as expected."""
        owner, name = None, ""
        try:
            owner, name = self.owner()
            found = self.find()
        except LookupError as error:
            return str(error)
        if self.equals is not _UNSET and found != self.equals:
            return f"{self.point} is {found!r}, expected {self.equals!r}"
        # the attribute itself, not what a descriptor makes of it
        static = inspect.getattr_static(owner, name, found)
        function = getattr(static, "__func__", static)
        return self._signature(function) or self._locals(function)

    def _signature(self, function: Any) -> str | None:
        if not self.parameters and not self.leading:
            return None
        try:
            names = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            return f"{self.point} has no signature that can be read"
        if names[: len(self.leading)] != self.leading:
            return f"{self.point} takes {names}, expected {self.leading} first"
        missing = [name for name in self.parameters if name not in names]
        return f"{self.point} takes no {', '.join(missing)}" if missing else None

    def _locals(self, function: Any) -> str | None:
        if not self.reads:
            return None
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None:
            return f"{self.point} is no Python function"
        missing = [name for name in self.reads if name not in (*code.co_varnames, *code.co_cellvars)]
        return f"{self.point} has no local {', '.join(missing)}" if missing else None


def by_alias(names: Iterable[Name]) -> Mapping[str, Name]:
    """The names of one module by what callers import."""
    return {name.called: name for name in names}


def resolve(names: Mapping[str, Name], wanted: str, module: str) -> Any:
    """What a module's ``__getattr__`` gives: the thing of torch under this name."""
    if wanted not in names:
        raise AttributeError(f"module {module!r} has no attribute {wanted!r}")
    return names[wanted].get()
