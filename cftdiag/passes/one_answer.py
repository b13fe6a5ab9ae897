"""One task, one answer: a task runs in a child of its own, and the message that answers it is handed back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from cftdiag.errors import EnvironmentUnfit, InputError
from cftdiag.passes.launch import ForkServer, Pass
from cftdiag.passes.messages import ProgressEvent, Refused, Task, Unfit

Answer = TypeVar("Answer")


def answer(
    task: Task, entry: str, kind: type[Answer], *, doing: str, progress: Callable[[ProgressEvent], None]
) -> Answer:
    """Run ``task`` by ``entry`` (``module:function``) and return its first message of ``kind``.

    Raises :class:`InputError` or :class:`EnvironmentUnfit`; ``doing`` says in the latter what ended without a
    result. The child and its scratch folder are gone when this returns, whatever happened.
    """
    with contextlib.closing(ForkServer(entry)) as launcher:
        running = Pass(launcher, task, None)
        with contextlib.closing(iter(running)) as messages:
            for message in messages:
                match message:
                    case ProgressEvent():
                        progress(message)
                    case Refused():
                        raise InputError(message.message)
                    case Unfit():
                        raise EnvironmentUnfit(message.message)
                    case _ if isinstance(message, kind):
                        return message
    raise EnvironmentUnfit(f"{doing} ended without a result ({running.detail}); report it") from _Child(
        running.output
    )


class _Child(RuntimeError):
    """What a child wrote before it died; --debug shows it."""
