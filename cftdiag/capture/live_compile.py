"""What the running process knows about a compile while torch reports on it: found on the Python stack, kept
nowhere.

``_compile`` in ``torch/_dynamo/convert_frame.py`` is on the stack during every record of a compile. Its
locals hold the frame being compiled (whose locals hold the block), the cache entries that missed, and the
exception that ended the capture.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from cftdiag import guards
from cftdiag.capture import cached_guards, recompile_reasons
from cftdiag.capture.blocks import Blocks, strip, unwrap
from cftdiag.capture.compile_state import Changed
from cftdiag.capture.describe import describe, full_path
from cftdiag.details import Argument
from cftdiag.events import Code, Guard


class LiveCompile:
    """One look at the stack (a :class:`~cftdiag.capture.compile_state.Live`). Made inside a log handler, used
    there, dropped there.
    """

    def __init__(self, compiling: FrameType, handler: FrameType, blocks: Blocks) -> None:
        locals_ = compiling.f_locals
        above, self.under_checkpoint = _modules_above(compiling.f_back)
        if not blocks and above:
            # No model was given: the outermost module on the stack is the root.
            blocks.watch(above[-1])
        self._locals = locals_
        self._handler = handler
        self._blocks = blocks
        self._frame_locals: dict[str, Any] = dict(getattr(locals_.get("frame"), "f_locals", None) or {})
        code: CodeType | None = locals_.get("code")
        self._code = code
        self.code = (
            Code(qualname=code.co_qualname, file=code.co_filename, line=code.co_firstlineno)
            if code is not None
            else None
        )
        self.fullgraph: bool | None = locals_.get("one_graph")
        thread = threading.current_thread()
        self.thread = None if thread is threading.main_thread() else thread.name
        self._module, self._name = self._owner(above)
        self.block = None if self._name is None else blocks.block(self._name)
        self.block_class = None if self.block is None else blocks.cls(self.block)

    @classmethod
    def find(cls, blocks: Blocks) -> LiveCompile | None:
        """The innermost compile on this thread's stack, or None."""
        handler = sys._getframe(1)
        frame: FrameType | None = handler
        while frame is not None and not is_compile(frame.f_code):
            frame = frame.f_back
        return None if frame is None else cls(frame, handler, blocks)

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

    def self_name(self) -> str | None:
        """The local that holds the block's own module (``self``, or whatever its author calls it); None where
        none does.
        """
        code = self._code
        if code is None or not code.co_argcount:
            return None
        first = code.co_varnames[0]
        return first if self._module is not None and self._frame_locals.get(first) is self._module else None

    def parameters(self) -> dict[str, str]:
        """``args[0]`` -> parameter name of the block's ``forward``, for frames that take ``*args`` (wrappers,
        ``__call__``).
        """
        code = self._code
        if code is None or not code.co_flags & inspect.CO_VARARGS or self._module is None:
            return {}
        varargs = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        try:
            parameters = list(inspect.signature(unwrap(self._module).forward).parameters.values())
        except (TypeError, ValueError):
            return {}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return {f"{varargs}[{i}]": name for i, name in enumerate(positional)}

    def misses(
        self, found: list[recompile_reasons.Miss]
    ) -> list[tuple[recompile_reasons.Miss, int | None, Changed]]:
        """Each reason completed with the values met, its entry's number of failing guards and what changed:
        ``{source: [old, new]}``.
        """
        entries = {str(entry.compile_id): entry for entry in self._entries()}
        return [self._miss(miss, entries.get(miss.entry or "")) for miss in found]

    def _miss(
        self, miss: recompile_reasons.Miss, entry: Any
    ) -> tuple[recompile_reasons.Miss, int | None, Changed]:
        if entry is None or getattr(entry.guard_manager, "invalidation_reason", None) is not None:
            return miss, None, {}
        failed = cached_guards.failures(entry, self._frame_locals)
        guard = cached_guards.complete(miss.guard, cached_guards.scope_of(entry, self._frame_locals))
        changed = {f.source: (f.expected, f.actual) for f in failed if f.source is not None}
        stack = tuple(dataclasses.replace(frame, file=full_path(frame.file, None)) for frame in miss.stack)
        # one condition on a size is asserted in many forms: all shape expressions together are one guard
        count = sum(f.condition.stage != "shape" for f in failed) + any(
            f.condition.stage == "shape" for f in failed
        )
        return dataclasses.replace(miss, guard=guard, stack=stack), count or None, changed

    def limit(self) -> tuple[str, int] | None:
        """(name of the limit that was hit, its value), where the compile ended by one."""
        name = self._locals.get("limit_type")
        if not self._locals.get("exceeded") or not isinstance(name, str):
            return None
        import torch._dynamo.config

        return name, int(getattr(torch._dynamo.config, name))

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
        for tracer in self._tracers():
            stack = getattr(tracer, "nn_module_stack", None)
            if not stack:
                continue
            path, kind = list(stack.values())[-1]
            name = self._relative(str(path))
            if name is not None:
                block = self._blocks.block(name)
                return block, self._blocks.cls(block) or getattr(kind, "__name__", str(kind))
        return None

    def exception(self) -> str:
        """Class name of the exception that ends the capture; "" when none is in flight."""
        error = self._error()
        return "" if error is None else type(error).__name__

    def _error(self) -> BaseException | None:
        """The exception in ``_compile``'s handler, or the one that a graph break is being logged for."""
        error = self._locals.get("e")
        if error is None:
            frame: FrameType | None = self._handler
            while frame is not None and frame.f_code.co_name != "log_graph_break":
                frame = frame.f_back
            error = frame.f_locals.get("exc") if frame is not None else None
        return error if isinstance(error, BaseException) else None

    def _entries(self) -> list[Any]:
        for name in ("cache_entries_for_reasons", "cache_entries"):
            if name in self._locals:
                return list(self._locals[name] or ())
        if self._code is None:
            return []
        # Before torch 2.13 _compile has no such local.
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        return list(_debug_get_cache_entry_list(self._code))

    def _argument_values(self) -> list[tuple[str, Any]]:
        code = self._code
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

    def _tracers(self) -> list[Any]:
        """Instruction translators, innermost first: those the exception went through, then those that are
        still tracing.
        """
        raised: list[Any] = []
        error = self._error()
        while error is not None:
            # A break in a loop or a context manager is raised anew by the frame that cannot resume: the first
            # one is its context.
            traceback = error.__traceback__
            while traceback is not None:
                if traceback.tb_frame.f_code.co_name == "step":
                    raised.append(traceback.tb_frame.f_locals.get("self"))
                traceback = traceback.tb_next
            error = error.__cause__ or error.__context__
        tracing: list[Any] = []
        frame: FrameType | None = self._handler
        while frame is not None and not is_compile(frame.f_code):
            if frame.f_code.co_name in ("log_graph_break", "step"):
                tracing.append(frame.f_locals.get("self"))
            frame = frame.f_back
        return raised[::-1] + tracing

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
        return strip(".".join(part for part in [self._name, *tail] if part and part != "_modules"))


def is_compile(code: CodeType) -> bool:
    """True for ``_compile`` of ``torch/_dynamo/convert_frame.py``."""
    return code.co_name == "_compile" and code.co_filename.endswith("convert_frame.py")


def _modules_above(frame: FrameType | None) -> tuple[list[Any], bool]:
    """(modules whose call is on the stack, nearest first; whether a checkpoint's forward or recomputation
    is).

    Only frames of ``Module.__call__`` are asked for their locals: they end with the call, while asking a
    training loop's frame would keep its tensors alive until the loop ends (before Python 3.13, ``f_locals``
    is a copy that the frame keeps).
    """
    import torch

    calls = {torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__}
    found: list[Any] = []
    checkpoint = False
    while frame is not None:
        if frame.f_code in calls:
            module = frame.f_locals.get("self")
            if module is not None and (not found or found[-1] is not module):
                found.append(module)
        elif frame.f_code.co_filename.endswith("torch/utils/checkpoint.py"):
            checkpoint = True
        frame = frame.f_back
    return found, checkpoint
