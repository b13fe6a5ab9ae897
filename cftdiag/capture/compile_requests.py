"""What a program asks torch to compile, and what of it never ran a graph.

torch says nothing where a compiled module is never called, or where Dynamo skips its frame: "compile is on"
and everything is eager. Here each call of ``torch.compile`` (``Module.compile`` goes through it too) is noted,
and what compiled afterwards is held against it.
"""

from __future__ import annotations

import functools
import inspect
import re
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from cftdiag.capture.blocks import unwrap
from cftdiag.events import Event
from cftdiag.torch_private import guard_tree, rehearsal

#: Where torch's ``wrap_inline`` is, whose frame Dynamo compiles in place of one that it would skip.
_INLINED = "/torch/_dynamo/external_utils"


#: Folders of installed packages, in the path of a file.
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


class Idle(NamedTuple):
    """A module or function that was to be compiled and of which no graph exists."""

    target: Any
    cls: str
    """Class name of a module, qualified name of a function."""
    skipped_file: str | None
    """The file of its forward, where Dynamo skips that file's frames (those of ``torch.nn``)."""


class CompileRequests:
    """A context that notes what is asked for; feed it the events of the same time."""

    def __init__(self) -> None:
        self._targets: list[weakref.ref[Any]] = []
        self._wrapped: set[int] = set()
        """Ids of the modules given to ``torch.compile`` itself, not compiled in place."""
        self._compiled: set[tuple[str, int]] = set()
        self._blocks: set[str] = set()
        self._undo: Callable[[], None] | None = None

    def __enter__(self) -> CompileRequests:
        import torch

        original = torch.compile

        @functools.wraps(original)
        def compile(model: Any = None, **kwargs: Any) -> Any:
            if model is not None and not kwargs.get("disable"):
                self._note(model)
            return original(model, **kwargs)

        torch.compile = compile

        def undo() -> None:
            # someone may have replaced it again since: only our own layer is taken off
            if torch.compile is compile:
                torch.compile = original

        self._undo = undo
        return self

    def __exit__(self, *exc: object) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def see(self, event: Event) -> None:
        """Take in an event: whatever was compiled, broke or failed is no longer silent."""
        if event.kind == "compile" and (event.compiled.status != "ok" or not event.compiled.ops):
            return
        if event.kind in ("compile", "graph_break", "limit_hit", "error"):
            if event.code is not None:
                self._compiled.add((event.code.file, event.code.line))
            inside = event.compiled.module if event.kind == "compile" else None
            self._blocks |= {name for name in (event.block, inside) if name is not None}

    def idle(self, name_of: Callable[[Any], str | None]) -> list[Idle]:
        """What was asked for and neither compiled nor broke. ``name_of`` names a module of the watched model."""
        found: dict[int, Idle] = {}
        for reference in self._targets:
            target = reference()
            if target is None or self._told(target, name_of):
                continue
            codes = _codes(target)
            cls = getattr(target, "__qualname__", None) or type(unwrap(target)).__name__
            found[id(target)] = Idle(target, cls, next(filter(None, map(_skipped, codes)), None))
        return list(found.values())

    def _told(self, target: Any, name_of: Callable[[Any], str | None]) -> bool:
        codes = _codes(target)
        if {(code.co_filename, code.co_firstlineno) for code in codes} & self._compiled:
            return True
        if any(_cached(code) for code in codes):
            return True  # compiled before anybody listened
        name = name_of(target)
        inlined = any(_INLINED in file for file, _ in self._compiled)
        if inlined and any(map(_skipped, codes)) and (id(target) in self._wrapped or self._in_place(name_of)):
            return True  # torch wraps modules of its own files in one function: equal ones share its graph
        # the frame of a whole model may be skipped while those of modules inside are compiled
        return name is not None and any(
            block == name or block.startswith(f"{name}.") or name in ("", "<root>") for block in self._blocks
        )

    def _in_place(self, name_of: Callable[[Any], str | None]) -> bool:
        """True where a module that Dynamo would skip was compiled in place, which torch does from 2.14 on."""
        for reference in self._targets:
            target = reference()
            if target is None or id(target) in self._wrapped or not any(map(_skipped, _codes(target))):
                continue
            if name_of(target) in self._blocks:
                return True
        return False

    def _note(self, model: Any) -> None:
        target = model
        if inspect.ismethod(model):
            # a module compiled in place comes as its call; any other method is compiled for its own code
            target = model.__self__ if _is_call(model) else model.__func__
        elif _while_importing_a_library():
            return  # prepared for whoever may use it
        try:
            self._targets.append(weakref.ref(target))
        except TypeError:
            return  # a builtin or a partial: nothing to find again
        if target is model:
            self._wrapped.add(id(target))


def _is_call(method: Any) -> bool:
    """True for a method that is the call of a whole module: its forward, and what torch's own class has."""
    import torch

    return method.__name__ == "forward" or getattr(torch.nn.Module, method.__name__, None) is method.__func__


def _while_importing_a_library() -> bool:
    """Whether the code that asks runs because an installed package is imported: its decorators do."""
    frame = inspect.currentframe()
    while frame is not None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module == "__main__" or not (module.startswith("cftdiag.") or _INSTALLED.search(file)):
            return False
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _codes(target: Any) -> list[CodeType]:
    import torch

    if isinstance(target, torch.nn.Module):
        return [c for m in (target, unwrap(target)) if (c := getattr(type(m).forward, "__code__", None))]
    # a decorator that Dynamo traces is the frame itself
    functions = (target, inspect.unwrap(target))
    return [code for function in functions if (code := getattr(function, "__code__", None)) is not None]


def _cached(code: CodeType) -> bool:
    return bool(guard_tree.cached(code))


def _skipped(code: CodeType) -> str | None:
    """The file of a frame that Dynamo skips by its rules on files; None for one that it compiles."""
    return code.co_filename if rehearsal.skips(code) else None
