"""Which block a module belongs to: names with wrappers stripped, found again by identity without keeping
anything alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from cftdiag.torch_private import compiled_call
from cftdiag.torch_private.wrappers import ORIGINAL, class_name, strip, unwrap

ROOT = "<root>"


class Blocks:
    """The modules of the watched models by identity.

    Block of a module: the nearest enclosing one that was named as a block (``watch(blocks=...)``, ``track``);
    else the nearest enclosing module that is itself compiled, the whole model left out; else the outermost
    enclosing member of a ModuleList; else the module itself.
    """

    def __init__(self) -> None:
        self.roots: list[weakref.ref[Any]] = []
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._members: set[str] = set()
        self._wrapped: set[str] = set()
        self.named: set[str] = set()

    def watch(self, model: Any, blocks: Iterable[str] = ()) -> None:
        """Register a model's modules under their names in it; again after wrapping, and for several models."""
        if not any(ref() is model for ref in self.roots):
            self.roots.append(weakref.ref(model))
        self.named.update(strip(name) for name in blocks)
        for fqn, module in _modules(model):
            name = strip(fqn)
            self._known[id(module)] = (weakref.ref(module), name)
            if ORIGINAL in module._modules:
                self._wrapped.add(name)
            if type(module).__name__ == "ModuleList":
                self._members.update(f"{name}.{child}" if name else child for child in module._modules)

    def __bool__(self) -> bool:
        return bool(self.roots)

    def name(self, module: Any) -> str | None:
        """FQN of a module, wrappers stripped; ``""`` for a root; None when it is not registered."""
        known = self._known.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def refresh(self) -> None:
        """Register again: modules that were wrapped after ``watch`` become known."""
        for ref in self.roots:
            model = ref()
            if model is not None:
                self.watch(model)

    def block(self, name: str) -> str:
        """The block that the module of this name belongs to, ``<root>`` for the whole model."""
        if not name:
            return ROOT
        parts = name.split(".")
        chain = [".".join(parts[: i + 1]) for i in range(len(parts))]
        for wanted in (self.named, self._compiled()):
            found = next((fqn for fqn in reversed(chain) if fqn in wanted), None)
            if found is not None:
                return found
        return next((fqn for fqn in chain if fqn in self._members), name)

    def cls(self, block: str) -> str | None:
        """Class name of a block."""
        wanted = "" if block == ROOT else block
        module = next(
            (ref() for ref, name in self._known.values() if name == wanted and ref() is not None), None
        )
        return None if module is None else class_name(unwrap(module))

    def _compiled(self) -> set[str]:
        """Names of modules that are compiled by themselves, the root left out: a whole-model compile still
        names the block inside.
        """
        found = set(self._wrapped)
        for ref, name in self._known.values():
            module = ref()
            if module is not None and compiled_call.in_place(module):
                found.add(name)
        return found - {""}


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    """``named_modules`` with the ``module`` under a DDP wrapper left out of the names, at whatever depth the
    wrapper is.
    """
    held: list[str] = []
    for fqn, module in model.named_modules():
        name = fqn
        # An outer wrapper's part is further left: taking out from the right keeps the others' positions.
        for prefix in reversed(held):
            if fqn == prefix or fqn.startswith(f"{prefix}."):
                name = name[: max(len(prefix) - len("module"), 0)] + name[len(prefix) + 1 :]
        if type(module).__name__ == "DistributedDataParallel":
            held.append(f"{fqn}.module" if fqn else "module")
        yield name.rstrip("."), module
