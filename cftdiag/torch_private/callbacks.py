"""Called around compiles: Dynamo's start and end callbacks of the outermost compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cftdiag.torch_private.names import Name

_HANDLER = Name(
    "torch._dynamo.callback:callback_handler",
    "trace",
    "it is not known when torch compiles: the check would trace its own stand-ins",
)
NAMES = (
    _HANDLER,
    Name(
        "torch._dynamo.callback:CallbackArgs.__annotations__",
        "monitor",
        "a compile in flight carries no id",
        alias="callback_args",
        needed=False,
    ),
)

Callback = Callable[[Any], None]


def register(start: Callback, end: Callback) -> None:
    """Call ``start(args)`` and ``end(args)`` around the outermost compile; those that are registered already
    stay as they are.
    """
    handler = _HANDLER.get()
    if start not in handler.start_callbacks:
        handler.register_start_callback(start)
    if end not in handler.end_callbacks:
        handler.register_end_callback(end)


def unregister(start: Callback, end: Callback) -> None:
    """Take them out again; ``torch._dynamo.reset`` may have done so already."""
    handler = _HANDLER.get()
    for callbacks, own in ((handler.start_callbacks, start), (handler.end_callbacks, end)):
        if own in callbacks:
            callbacks.remove(own)


def registered() -> tuple[tuple[Callback, ...], tuple[Callback, ...]]:
    """(start, end) callbacks of now."""
    handler = _HANDLER.get()
    return tuple(handler.start_callbacks), tuple(handler.end_callbacks)


def compile_id(args: Any) -> str:
    """Compile id of what a callback is called with, "" where it has none."""
    return str(getattr(args, "compile_id", None) or "")
