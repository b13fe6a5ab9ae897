"""Calling a function once a module has been imported, without importing it.

Plain classes: ``importlib.abc`` would import ``tempfile``, which keeps the functions of ``os`` from its import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_WAITING: dict[str, list[Callable[[ModuleType], None]]] = {}


def after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call ``callback(module)`` when ``name`` has been imported; at once where it has been already.

    A module that is being imported right now must have been expected: its own loader is at work already.
    """
    if name in sys.modules and name not in _WAITING:
        callback(sys.modules[name])
        return
    expect(name)
    _WAITING[name].append(callback)


def expect(*names: str) -> None:
    """Notice the imports of these modules, so that `after_import` can be asked while one is under way."""
    for name in names:
        if name not in sys.modules:
            _WAITING.setdefault(name, [])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


class _Loader:
    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._inner, attribute)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        # The module must not keep this wrapper: resources and reloads ask the loader that is in its spec.
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        for callback in _WAITING.pop(self._name, ()):
            callback(module)


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WAITING:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, name)  # type: ignore[assignment]
                return spec
        return None
