"""What the running process knows about a compile while torch reports on it: found on the Python stack, kept
nowhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import os
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from cftdiag import guards
from cftdiag.capture import cached_guards, recompile_reasons
from cftdiag.capture.blocks import Blocks
from cftdiag.capture.compile_state import Changed
from cftdiag.capture.describe import describe, full_path
from cftdiag.details import Argument
from cftdiag.events import Code, Frame, Guard
from cftdiag.torch_private import guard_tree
from cftdiag.torch_private.compile_frame import CompileFrame, innermost_compile, modules_calling, stack
from cftdiag.torch_private.wrappers import strip, unwrap

#: Where a module keeps its members: a step of a source's path that is no part of a name.
_STORES = frozenset({"_modules", "__dict__"})
_OURS = str(Path(__file__).parents[1]) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep


class LiveCompile:
    """One look at the stack (a :class:`~cftdiag.capture.compile_state.Live`). Made inside a log handler, used
    there, dropped there.
    """

    def __init__(self, compiling: CompileFrame, blocks: Blocks) -> None:
        above, self.under_checkpoint = modules_calling(compiling.caller)
        if not blocks and above:
            # No model was given: the outermost module on the stack is the root.
            blocks.watch(above[-1])
        self._compiling = compiling
        self._blocks = blocks
        self._frame_locals = compiling.frame_locals()
        code = compiling.code
        self.compiled_code = code
        self.code = (
            Code(qualname=code.co_qualname, file=code.co_filename, line=code.co_firstlineno)
            if code is not None
            else None
        )
        self.fullgraph = compiling.fullgraph
        thread = threading.current_thread()
        self.thread = None if thread is threading.main_thread() else thread.name
        self._module, self._name = self._owner(above)
        self.block = None if self._name is None else blocks.block(self._name)
        self.block_class = None if self.block is None else blocks.cls(self.block)

    @classmethod
    def find(cls, blocks: Blocks) -> LiveCompile | None:
        """The innermost compile on this thread's stack, or None."""
        compiling = innermost_compile(sys._getframe(1))
        return None if compiling is None else cls(compiling, blocks)

    def _owner(self, above: list[Any]) -> tuple[Any, str | None]:
        """The module being compiled and its name: among the compiled frame's locals (first argument first),
        else the nearest one that is calling.
        """
        candidates = [*self._frame_locals.values(), *above]
        for attempt in range(2):
            for value in candidates:
                name = self._blocks.name(value)
                if name is not None:
                    return value, name
            if attempt == 0:
                self._blocks.refresh()
        return None, None

    def arguments(self) -> dict[str, Argument]:
        """The frame's tensor and scalar arguments by the block's parameter names."""
        names = self.parameters()
        described = ((names.get(name, name), describe(value)) for name, value in self._argument_values())
        return {name: value for name, value in described if value is not None}

    def module_name(self) -> str | None:
        """FQN of the module whose own frame is compiled; None for a function that some module calls."""
        own = any(value is self._module for value in self._frame_locals.values())
        return self._name if own and self._module is not None else None

    def argument_names(self) -> tuple[str, ...]:
        """Names of all arguments of the frame, lists and objects too, as :meth:`arguments` names them."""
        names = self.parameters()
        return tuple(names.get(name, name) for name, _ in self._argument_values())

    def self_name(self) -> str | None:
        """The local that holds the block's own module (``self``, or whatever its author calls it); None where
        none does.
        """
        code = self.compiled_code
        if code is None or not code.co_argcount:
            return None
        first = code.co_varnames[0]
        return first if self._module is not None and self._frame_locals.get(first) is self._module else None

    def free(self) -> tuple[str, ...]:
        """Free variables of the compiled code: what a decorator's wrapper closes over."""
        return self.compiled_code.co_freevars if self.compiled_code is not None else ()

    def forward(self) -> Frame | None:
        """The block's own ``forward``, where another function (a base class's ``__call__``, a decorator's wrapper)
        was compiled.
        """
        if self._module is None or self.compiled_code is None:
            return None
        code = getattr(inspect.unwrap(type(unwrap(self._module)).forward), "__code__", None)
        if code is None or (code.co_filename, code.co_name) == (
            self.compiled_code.co_filename,
            self.compiled_code.co_name,
        ):
            return None
        return Frame(file=code.co_filename, line=code.co_firstlineno, function=code.co_qualname)

    def caller(self) -> Frame | None:
        """The nearest line that is not torch's own, of those that called a compiled function of torch
        (``optimizer.step``); None for a function of anybody else, whose own lines say more.
        """
        if self.compiled_code is None or not _of_torch(self.compiled_code.co_filename):
            return None
        for frame in stack(self._compiling.caller):
            code = frame.f_code
            if not _of_torch(code.co_filename) and not code.co_filename.startswith(_OURS):
                text = linecache.getline(code.co_filename, frame.f_lineno).strip() or None
                return Frame(file=code.co_filename, line=frame.f_lineno, function=code.co_qualname, code=text)
        return None

    def parameters(self) -> dict[str, str]:
        """``args[0]`` -> parameter name of the block's ``forward`` and ``kwargs['mask']`` -> ``mask``, for frames that
        take ``*args, **kwargs`` (wrappers, ``__call__``).
        """
        code = self.compiled_code
        if code is None:
            return {}
        return {**self._positional(code), **self._keywords(code)}

    def _keywords(self, code: CodeType) -> dict[str, str]:
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            return {}
        given = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        name = code.co_varnames[given]
        return {f"{name}[{key!r}]": key for key in self._frame_locals.get(name) or ()}

    def _positional(self, code: CodeType) -> dict[str, str]:
        if not code.co_flags & inspect.CO_VARARGS or self._module is None:
            return {}
        varargs = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        try:
            parameters = list(inspect.signature(unwrap(self._module).forward).parameters.values())
        except (TypeError, ValueError):
            return {}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        given = self._frame_locals.get(varargs) or ()
        # a decorator's wrapper is given the module itself first
        own = 1 if given and given[0] is self._module else 0
        return {f"{varargs}[{i + own}]": name for i, name in enumerate(positional)}

    def misses(
        self, found: list[recompile_reasons.Miss]
    ) -> list[tuple[recompile_reasons.Miss, int | None, Changed]]:
        """Each reason completed with the values met, its entry's number of failing guards and what changed:
        ``{source: [old, new]}``.
        """
        entries = {str(entry.compile_id): entry for entry in self._compiling.entries()}
        return [self._miss(miss, entries.get(miss.entry or "")) for miss in found]

    def _miss(
        self, miss: recompile_reasons.Miss, entry: Any
    ) -> tuple[recompile_reasons.Miss, int | None, Changed]:
        if entry is None or guard_tree.invalidated(entry) is not None:
            return miss, None, {}
        failed = cached_guards.failures(entry, self._frame_locals)
        guard = cached_guards.complete(miss.guard, guard_tree.scope_of(entry, self._frame_locals))
        changed = {f.source: (f.expected, f.actual) for f in failed if f.source is not None}
        stack = tuple(dataclasses.replace(frame, file=full_path(frame.file, None)) for frame in miss.stack)
        # one condition on a size is asserted in many forms: all shape expressions together are one guard
        count = sum(f.condition.stage != "shape" for f in failed) + any(
            f.condition.stage == "shape" for f in failed
        )
        return dataclasses.replace(miss, guard=guard, stack=stack), count or None, changed

    def limit(self) -> tuple[str, int] | None:
        """(name of the limit that was hit, its value), where the compile ended by one."""
        return self._compiling.limit()

    def guard_block(self, guard: Guard) -> str | None:
        """The inner block whose attribute a guard of a whole-model compile reads."""
        name = self._relative(guard.source or "")
        if name is None or not name:
            return None
        block = self._blocks.block(name)
        return block if block != self.block and self._blocks.cls(block) is not None else None

    def inner_block(self) -> tuple[str, str | None] | None:
        """(block, class) in which tracing stands: inside a whole-model compile the inlined block, not the
        root.
        """
        for path, kind in self._compiling.modules_traced():
            name = self._relative(path)
            if name is not None:
                block = self._blocks.block(name)
                return block, self._blocks.cls(block) or getattr(kind, "__name__", str(kind))
        return None

    def exception(self) -> str:
        """Class name of the exception that ends the capture; "" when none is in flight."""
        error = self._compiling.error()
        return "" if error is None else type(error).__name__

    def _argument_values(self) -> list[tuple[str, Any]]:
        code = self.compiled_code
        if code is None:
            return []
        count = code.co_argcount + code.co_kwonlyargcount
        named = [
            (name, self._frame_locals[name])
            for name in code.co_varnames[:count]
            if name in self._frame_locals
        ]
        if code.co_flags & inspect.CO_VARARGS:
            name = code.co_varnames[count]
            named += [(f"{name}[{i}]", value) for i, value in enumerate(self._frame_locals.get(name) or ())]
            count += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named += list((self._frame_locals.get(code.co_varnames[count]) or {}).items())
        return named

    def _relative(self, path: str) -> str | None:
        """A source that starts at the compiled module (``L['self'].layers[2].idx``) as a name in the watched
        model; None for any other.
        """
        if self._name is None:
            return None
        first = next((name for name, value in self._frame_locals.items() if value is self._module), None)
        prefix = f"L[{first!r}]"
        if first is None or not path.startswith(prefix):
            return None
        tail = guards.parts(path, len(prefix))
        return strip(".".join(part for part in [self._name, *tail] if part and part not in _STORES))


def _of_torch(file: str) -> bool:
    return file.startswith((_TORCH, "<"))
