"""The compiled call of a module, and the one way of wrapping it.

``module.compile()`` keeps the compiled call in ``_compiled_call_impl``; ``torch.compile(module)`` makes a wrapper
module whose ``forward`` is the compiled call. A module hook would be traced into the graph, so whoever wants to
see a call wraps it here, from outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from cftdiag.torch_private.names import Name
from cftdiag.torch_private.wrappers import ORIGINAL

Call = Callable[..., Any]
#: ``around(call, args, kwargs)`` makes the call, or something in its place, and returns the result.
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]

_IN_PLACE = "_compiled_call_impl"

NAMES = (
    Name(
        f"torch.nn:Module.{_IN_PLACE}",
        "blocks",
        "graphs are not counted by block, and blocks that never run are not noticed",
    ),
    Name(
        "torch.nn:Module._call_impl",
        "blocks",
        "events carry no block, and a block that cannot be captured ends the fullgraph pass",
        reads=("self", "args", "kwargs", "forward_call"),
    ),
    Name(
        "torch.nn:Module._wrapped_call_impl",
        "blocks",
        "events carry no block",
        reads=("self",),
    ),
)


def call_name(module: Any) -> str | None:
    """The attribute that holds a module's compiled call; None when it is not compiled by itself."""
    if getattr(module, _IN_PLACE, None) is not None:
        return _IN_PLACE
    return "forward" if ORIGINAL in module._modules else None


def in_place(module: Any) -> bool:
    """True for a module that was compiled with ``module.compile()``."""
    return getattr(module, _IN_PLACE, None) is not None


def called_from(caller: FrameType) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """(function, args, kwargs) of the compiled function that ``caller`` calls, a module's call or
    ``torch.compile``'s own wrapper; None for any other frame.
    """
    values = caller.f_locals
    args, kwargs = values.get("args"), values.get("kwargs")
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        return None
    name = "forward_call" if caller.f_code.co_name == "_call_impl" else "fn"
    return values.get(name), args, kwargs


def eager_call(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a module compiled in place without its compiled code, hooks included."""
    return module._call_impl(*args, **kwargs)


def uncompile(module: Any) -> None:
    """Leave a module as it was before ``module.compile()``."""
    setattr(module, _IN_PLACE, None)


def wrap(module: Any, around: Around, *, eager: bool = False) -> Callable[[], None]:
    """Make every call of the compiled code of ``module`` through ``around``; returns a function that takes it
    off again.

    A module that is not compiled is left alone, or with ``eager`` has its ``forward`` wrapped. A call that
    Dynamo traces into a larger region passes by: nothing of ``around`` is traced.
    """
    import torch

    name = call_name(module) or ("forward" if eager else None)
    if name is None:
        return _nothing
    own = name in module.__dict__
    call: Call = getattr(module, name)
    compiling = torch.compiler.is_compiling

    @functools.wraps(call, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return call(*args, **kwargs)
        return around(call, args, kwargs)

    setattr(module, name, wrapped)

    def undo() -> None:
        # Someone may have wrapped it again since, or compiled it anew: only our own layer is taken off.
        if module.__dict__.get(name) is wrapped:
            if own:
                setattr(module, name, call)
            else:
                delattr(module, name)

    return undo


def _nothing() -> None:
    """Undo for a module that was not wrapped."""
