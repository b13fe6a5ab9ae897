"""What the running process knows about a compile while torch reports on it: found on the Python stack, kept nowhere.

``_compile`` in ``torch/_dynamo/convert_frame.py`` is on the stack during every record of a compile. Its locals hold the frame being compiled (whose
locals hold the block), the cache entries that missed, and the exception that ended the capture.
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FrameType
from typing import Any

from cftdiag.capture import guards, reasons
from cftdiag.capture.blocks import Blocks
from cftdiag.events import Code

_COMPILE = "_compile"
_COMPILE_FILE = "convert_frame.py"
_SELF_PREFIX = "L['self']"


class LiveCompile:
    """One look at the stack. Made inside a log handler, used there, dropped there."""

    def __init__(self, locals_: dict[str, Any], above: list[Any], under_checkpoint: bool, blocks: Blocks, handler: FrameType | None) -> None:
        self._locals = locals_
        self._blocks = blocks
        self._handler = handler
        frame = locals_.get("frame")
        self._frame_locals: dict[str, Any] = dict(getattr(frame, "f_locals", None) or {})
        code: CodeType | None = locals_.get("code")
        self._code = code
        self.code = Code(qualname=code.co_qualname, file=code.co_filename, line=code.co_firstlineno) if code is not None else None
        self.fullgraph: bool | None = locals_.get("one_graph")
        self.under_checkpoint = under_checkpoint
        self._module = self._owner(above)
        name = None if self._module is None else self._blocks.name(self._module)
        self.block = None if name is None else blocks.block(name)
        self.block_class = None if self.block is None else blocks.cls(self.block)

    @classmethod
    def find(cls, blocks: Blocks) -> LiveCompile | None:
        """The innermost compile on this thread's stack, or None."""
        frame: FrameType | None = sys._getframe(1)
        handler = frame
        while frame is not None and not (frame.f_code.co_name == _COMPILE and frame.f_code.co_filename.endswith(_COMPILE_FILE)):
            frame = frame.f_back
        if frame is None:
            return None
        above, under_checkpoint = _modules_above(frame.f_back)
        if not blocks and above:
            # No model was given: the outermost module on the stack is the root.
            blocks.watch(above[-1])
        return cls(frame.f_locals, above, under_checkpoint, blocks, handler)

    def _owner(self, above: list[Any]) -> Any:
        """The module being compiled: among the compiled frame's locals (first argument first), else the nearest one that is calling."""
        for attempt in range(2):
            for value in self._frame_locals.values():
                if self._blocks.name(value) is not None:
                    return value
            for module in above:
                if self._blocks.name(module) is not None:
                    return module
            if attempt == 0:
                self._blocks.refresh()
        return None

    def arguments(self) -> dict[str, Any]:
        """The frame's tensor and scalar arguments by the block's parameter names."""
        names = self.parameters()
        found: dict[str, Any] = {}
        for name, value in self._argument_values():
            described = _describe(value)
            if described is not None:
                found[names.get(name, name)] = described
        return found

    def parameters(self) -> dict[str, str]:
        """``args[0]`` -> parameter name of the block's ``forward``, for frames that take ``*args`` (wrappers, ``__call__``)."""
        code = self._code
        if code is None or not code.co_flags & inspect.CO_VARARGS or self._module is None:
            return {}
        from cftdiag.capture.blocks import unwrap

        varargs = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        try:
            parameters = list(inspect.signature(unwrap(self._module).forward).parameters.values())
        except (TypeError, ValueError):
            return {}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return {f"{varargs}[{i}]": name for i, name in enumerate(positional)}

    def misses(self, found: list[reasons.Miss]) -> list[tuple[reasons.Miss, int | None, dict[str, list[str | None]]]]:
        """Each reason completed with the values met, its entry's number of failing guards and what changed: ``{source: [old, new]}``."""
        entries = {str(entry.compile_id): entry for entry in self._entries()}
        return [self._miss(miss, entries.get(miss.entry or "")) for miss in found]

    def _miss(self, miss: reasons.Miss, entry: Any) -> tuple[reasons.Miss, int | None, dict[str, list[str | None]]]:
        import dataclasses

        if entry is None or not hasattr(entry.guard_manager, "root"):
            return miss, None, {}
        failed = guards.failures(entry, self._frame_locals)
        guard = guards.complete(miss.guard, guards.scope_of(entry, self._frame_locals))
        changed = {f.guard.source: [f.guard.expected, f.guard.actual] for f in failed if f.guard.source is not None}
        return dataclasses.replace(miss, guard=guard), len(failed) or None, changed

    def inner_block(self) -> tuple[str, str] | None:
        """(block, class) in which tracing stands: inside a whole-model compile the inlined block, not the root."""
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

    def exception(self) -> tuple[str, str] | None:
        """(class name, text) of the exception that ends the capture, where one is in flight."""
        error = self._error()
        return None if error is None else (type(error).__name__, str(error))

    def _error(self) -> BaseException | None:
        """The exception in ``_compile``'s handler, or the one that a graph break is being logged for."""
        error = self._locals.get("e")
        if error is None:
            frame = self._handler
            while frame is not None and frame.f_code.co_name != "log_graph_break":
                frame = frame.f_back
            error = frame.f_locals.get("exc") if frame is not None else None
        return error if isinstance(error, BaseException) else None

    def _entries(self) -> list[Any]:
        return list(self._locals.get("cache_entries_for_reasons") or self._locals.get("cache_entries") or ())

    def _argument_values(self) -> list[tuple[str, Any]]:
        code = self._code
        if code is None:
            return []
        count = code.co_argcount + code.co_kwonlyargcount
        named = [(name, self._frame_locals[name]) for name in code.co_varnames[:count] if name in self._frame_locals]
        if code.co_flags & inspect.CO_VARARGS:
            name = code.co_varnames[count]
            named += [(f"{name}[{i}]", value) for i, value in enumerate(self._frame_locals.get(name) or ())]
            count += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named += list((self._frame_locals.get(code.co_varnames[count]) or {}).items())
        return named

    def _tracers(self) -> list[Any]:
        """Instruction translators, innermost first: of the record's own stack while tracing, of the exception's traceback afterwards."""
        found: list[Any] = []
        frame = self._handler
        while frame is not None and frame.f_code.co_name != _COMPILE:
            if frame.f_code.co_name in ("log_graph_break", "step", "run"):
                found.append(frame.f_locals.get("self"))
            frame = frame.f_back
        traceback = getattr(self._error(), "__traceback__", None)
        raised: list[Any] = []
        while traceback is not None:
            if traceback.tb_frame.f_code.co_name == "step":
                raised.append(traceback.tb_frame.f_locals.get("self"))
            traceback = traceback.tb_next
        return raised[::-1] + found

    def _relative(self, path: str) -> str | None:
        """A tracer's module path (``L['self'].layers.2``) as a name in the watched model."""
        if not path.startswith(_SELF_PREFIX):
            return None
        own = None if self._module is None else self._blocks.name(self._module)
        if own is None:
            return None
        import re

        tail = re.sub(r"_modules\['(\w+)'\]|\['?(\w+)'?\]", lambda m: f".{m.group(1) or m.group(2)}", path.removeprefix(_SELF_PREFIX))
        from cftdiag.capture.blocks import strip

        return strip(".".join(part for part in [own, *tail.split(".")] if part))


def _modules_above(frame: FrameType | None) -> tuple[list[Any], bool]:
    """(modules whose call is on the stack, nearest first; whether a checkpoint's forward or recomputation is).

    Only frames of ``Module._call_impl`` are asked for their locals: they end with the call, while asking a training loop's frame would keep
    its tensors alive until the loop ends (before Python 3.13, ``f_locals`` is a copy that the frame keeps).
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


def _describe(value: Any) -> dict[str, Any] | None:
    """JSON form of an argument: a tensor's metadata or a scalar's value; None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        return {
            "shape": [int(n) for n in value.shape],
            "dtype": str(value.dtype).removeprefix("torch."),
            "requires_grad": bool(value.requires_grad),
            "device": str(value.device),
            "class": type(value).__name__,
        }
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value if not isinstance(value, str) else value[:200], "type": type(value).__name__}
    return None
