"""Which graphs each block runs: a block that runs none is eager, whatever torch's counters say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from cftdiag.torch_private import compiled_call, dynamo, tracing

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
        compiled = _backend(found)(module, inputs, **kwargs)
        cid = dynamo.current_compile_id() or "?"

        @functools.wraps(compiled, updated=())
        def run(*args: Any) -> Any:
            rec._ran(cid)
            return compiled(*args)

        if tracing.boxed_call(compiled):
            tracing.mark_boxed(run)
        return run

    compile_counted.__name__ = f"counting_{getattr(backend, '__name__', backend)}"
    rec._backends[backend] = compile_counted
    return compile_counted


def surround(block: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enter ``context()`` around each call of ``block``, outside its graph when it is compiled: for a
    profiler's ranges.
    """

    def around(call: compiled_call.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with context():
            return call(*args, **kwargs)

    compiled_call.wrap(block, around, eager=True)


def track(block: Any, fqn: str, rec: Recorder) -> Callable[[], None]:
    """Let ``rec`` know when ``block`` runs, so that graphs are booked on it; returns a function that undoes
    it (leaving the recorder does too).

    A block that is not compiled is left alone.
    """
    if compiled_call.call_name(block) is not None:
        rec.blocks.named.add(fqn)

    def around(call: compiled_call.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = rec._enter(fqn)
        try:
            return call(*args, **kwargs)
        finally:
            rec._leave(before)

    undo = compiled_call.wrap(block, around)
    rec._undo.append(undo)
    return undo


def _backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    return dynamo.lookup_backend(backend) if isinstance(backend, str) else backend  # type: ignore[no-any-return]
