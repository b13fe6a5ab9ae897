"""Which graphs each block runs: a block that runs none is eager, whatever torch's counters say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cftdiag.capture.recorder import Recorder


def counting(backend: str | Callable[..., Any], rec: Recorder) -> Callable[..., Any]:
    """A torch.compile backend that compiles with ``backend`` and books each run of a graph on the block that
    runs it.

    The same backend and recorder give the same object: Dynamo takes another backend object for a reason to
    recompile.
    """
    cached = rec._backends.get(backend)
    if cached is not None:
        return cached
    found = backend

    def compile_counted(module: Any, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        from torch._guards import CompileContext

        compiled = _backend(found)(module, inputs, **kwargs)
        current = CompileContext.current_compile_id()
        cid = str(current) if current is not None else "?"

        @functools.wraps(compiled, updated=())
        def run(*args: Any) -> Any:
            rec._ran(cid)
            return compiled(*args)

        if getattr(compiled, "_boxed_call", False):
            run._boxed_call = True  # type: ignore[attr-defined]
        return run

    compile_counted.__name__ = f"counting_{getattr(backend, '__name__', backend)}"
    rec._backends[backend] = compile_counted
    return compile_counted


def surround(block: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enter ``context()`` around each call of ``block``, outside its graph when it is compiled in place: for
    a profiler's ranges.
    """
    name = "forward" if getattr(block, "_compiled_call_impl", None) is None else "_compiled_call_impl"
    call: Callable[..., Any] = getattr(block, name)

    @functools.wraps(call)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    setattr(block, name, surrounded)


def track(block: Any, fqn: str, rec: Recorder) -> Callable[[], None]:
    """Let ``rec`` know when ``block`` runs, so that graphs are booked on it; returns a function that undoes
    it (leaving the recorder does too).

    Wraps the block's compiled call from outside: a module hook would be traced into the graph. A block that
    is not compiled is left alone.
    """
    name = "_compiled_call_impl" if getattr(block, "_compiled_call_impl", None) is not None else "forward"
    call: Callable[..., Any] = getattr(block, name)
    if name == "forward" and "_orig_mod" not in block._modules:
        return _nothing
    rec.blocks.named.add(fqn)

    def tracked(*args: Any, **kwargs: Any) -> Any:
        before = rec._enter(fqn)
        try:
            return call(*args, **kwargs)
        finally:
            rec._leave(before)

    setattr(block, name, tracked)

    def undo() -> None:
        # Someone may have wrapped it again since: only our own layer is taken off.
        if block.__dict__.get(name) is tracked:
            setattr(block, name, call)

    rec._undo.append(undo)
    return undo


def _nothing() -> None:
    """Undo of a block that was not tracked."""


def _backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(backend, str):
        return backend
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(backend)
