"""Dynamo's ``_compile`` and the frames around it, found on a Python stack.

``_compile`` in ``torch/_dynamo/convert_frame.py`` is on the stack during every record of a compile. Its locals
hold the frame that is compiled, the cache entries that missed, and the exception that ended the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from cftdiag.torch_private.guard_tree import cached
from cftdiag.torch_private.names import Name

_COMPILE = "torch._dynamo.convert_frame:_compile"
_TRANSLATOR = "torch._dynamo.symbolic_convert:InstructionTranslatorBase"
_CHECKPOINT_FILE = "torch/utils/checkpoint.py"
#: Locals of `_compile` that hold the entries that missed, the best first.
_ENTRIES = ("cache_entries_for_reasons", "cache_entries")

NAMES = (
    Name(_COMPILE, "record", "events carry no block and no arguments", reads=("frame", "code")),
    Name(
        _COMPILE,
        "record",
        "fullgraph failures are told from other failures by their text only",
        alias="compile_fullgraph",
        reads=("one_graph",),
        needed=False,
    ),
    Name(
        _COMPILE,
        "guards",
        "the entries that missed are read from the code object",
        alias="compile_entries",
        reads=("cache_entries_for_reasons",),
        needed=False,
        differs="before 2.13 no such local; 2.13 has cache_entries as well",
    ),
    Name(
        _COMPILE,
        "record",
        "a limit hit is told by its text only",
        alias="compile_limit",
        reads=("exceeded", "limit_type"),
        needed=False,
    ),
    Name(
        _COMPILE,
        "record",
        "the class of a capture's exception is not known",
        alias="compile_error",
        reads=("e",),
        needed=False,
    ),
    Name(
        f"{_TRANSLATOR}.log_graph_break",
        "blocks",
        "a break inside a whole-model compile is booked on the root",
        parameters=("exc",),
        needed=False,
        differs="2.10: without exc",
    ),
    Name(
        f"{_TRANSLATOR}.step",
        "blocks",
        "a break inside a whole-model compile is booked on the root",
        reads=("self",),
        needed=False,
    ),
)


def is_compile(code: CodeType) -> bool:
    """True for ``_compile`` of ``torch/_dynamo/convert_frame.py``."""
    return code.co_name == "_compile" and code.co_filename.endswith("convert_frame.py")


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def innermost_compile(frame: FrameType | None) -> CompileFrame | None:
    """The innermost compile on the stack that ends in ``frame``, or None."""
    found = next((f for f in stack(frame) if is_compile(f.f_code)), None)
    return None if found is None or frame is None else CompileFrame(found, frame)


class CompileFrame:
    """One look at a ``_compile`` that is on the stack; ``inner`` is the frame that looks, further in."""

    def __init__(self, compiling: FrameType, inner: FrameType) -> None:
        self._locals = compiling.f_locals
        self._inner = inner
        self.caller = compiling.f_back
        code = self._locals.get("code")
        self.code: CodeType | None = code if isinstance(code, CodeType) else None
        """The code that is compiled."""
        self.fullgraph: bool | None = self._locals.get("one_graph")

    def frame_locals(self) -> dict[str, Any]:
        """Locals of the frame that is compiled, at its start."""
        return dict(getattr(self._locals.get("frame"), "f_locals", None) or {})

    def entries(self) -> list[Any]:
        """Cache entries of the code, those that missed."""
        for name in _ENTRIES:
            if name in self._locals:
                return list(self._locals[name] or ())
        return [] if self.code is None else cached(self.code)

    def limit(self) -> tuple[str, int] | None:
        """(name of the limit that was hit, its value), where the compile ended by one."""
        name = self._locals.get("limit_type")
        if not self._locals.get("exceeded") or not isinstance(name, str):
            return None
        from cftdiag.torch_private.dynamo import config

        return name, int(getattr(config, name))

    def error(self) -> BaseException | None:
        """The exception in ``_compile``'s handler, or the one that a graph break is being logged for."""
        error = self._locals.get("e")
        if error is None:
            logging = next((f for f in stack(self._inner) if f.f_code.co_name == "log_graph_break"), None)
            error = logging.f_locals.get("exc") if logging is not None else None
        return error if isinstance(error, BaseException) else None

    def modules_traced(self) -> Iterator[tuple[str, Any]]:
        """(source, class) of the module in which each tracer stands, the innermost tracer first."""
        for tracer in self._tracers():
            entered = getattr(tracer, "nn_module_stack", None)
            if entered:
                path, kind = list(entered.values())[-1]
                yield str(path), kind

    def _tracers(self) -> list[Any]:
        """Instruction translators, innermost first: those the exception went through, then those that are
        still tracing.
        """
        raised: list[Any] = []
        error = self.error()
        while error is not None:
            # A break in a loop or a context manager is raised anew by the frame that cannot resume: the first
            # one is its context.
            traceback: TracebackType | None = error.__traceback__
            while traceback is not None:
                if traceback.tb_frame.f_code.co_name == "step":
                    raised.append(traceback.tb_frame.f_locals.get("self"))
                traceback = traceback.tb_next
            error = error.__cause__ or error.__context__
        tracing: list[Any] = []
        for frame in stack(self._inner):
            if is_compile(frame.f_code):
                break
            if frame.f_code.co_name in ("log_graph_break", "step"):
                tracing.append(frame.f_locals.get("self"))
        return raised[::-1] + tracing


def modules_calling(frame: FrameType | None) -> tuple[list[Any], bool]:
    """(modules whose call is on the stack, nearest first; whether a checkpoint's forward or recomputation
    is).

    Only frames of ``Module.__call__`` are asked for their locals: they end with the call, while asking a
    training loop's frame would keep its tensors alive until the loop ends (before Python 3.13, ``f_locals``
    is a copy that the frame keeps).
    """
    import torch

    calls = (torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__)
    found: list[Any] = []
    checkpoint = False
    for caller in stack(frame):
        # by identity: code that Dynamo has made may hold a dictionary, and has no hash then
        if any(caller.f_code is call for call in calls):
            module = caller.f_locals.get("self")
            if module is not None and (not found or found[-1] is not module):
                found.append(module)
        elif caller.f_code.co_filename.endswith(_CHECKPOINT_FILE):
            checkpoint = True
    return found, checkpoint
