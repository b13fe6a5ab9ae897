"""Settings of torch by their dotted names, and those of remedies that only some releases have. Imports torch only to set one."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cftdiag.error_text import one_line
from cftdiag.errors import InputError

#: A remedy with one of them is offered where the torch that runs has it.
SOME_RELEASES = (
    "torch.compiler.config.static_sources",
    "torch.compiler.config.compile_on_one_rank",
    "torch._functorch.config._sync_cache_decision_cross_ranks",
    "torch._inductor.config.numerics",
)


def offered(change: Mapping[str, Any] | None, there: Collection[str]) -> bool:
    """False for a change of a setting that this torch lacks. ``there``: those of :data:`SOME_RELEASES` that it has."""
    return all(name in there for name in change or () if name in SOME_RELEASES)


@contextlib.contextmanager
def torch_config(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set dotted torch config names, restored afterwards; raises :class:`InputError` for one that this torch
    lacks.
    """
    with contextlib.ExitStack() as stack:
        for dotted, value in settings.items():
            module_name, name = _split_config(dotted)
            try:
                module = importlib.import_module(module_name)
                if isinstance(getattr(module, name), (set, frozenset)):
                    value = set(getattr(module, name)) | {_resolved(value)}
                stack.enter_context(module.patch(**{name: value}))
            except (ImportError, AttributeError, TypeError) as error:
                raise InputError(
                    f"this torch has no setting {dotted}, or not this value for it ({one_line(error)})"
                ) from error
        yield


def _split_config(dotted: str) -> tuple[str, str]:
    """(module, name in it) of ``torch._inductor.config.triton.max_tiles``."""
    for middle in (".config.", "._config."):
        head, marker, tail = dotted.partition(middle)
        if marker and head.startswith("torch"):
            return head + middle.rstrip("."), tail
    raise InputError(
        f"{dotted!r} is no torch setting; write torch._dynamo.config.NAME or torch._inductor.config.NAME"
    )


def _resolved(name: Any) -> Any:
    """The object of a dotted name (``logging.Logger.warning``), for settings that are sets of functions;
    anything else as it is.
    """
    if not isinstance(name, str):
        return name
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ImportError):
            found: Any = importlib.import_module(".".join(parts[:cut]))
            for part in parts[cut:]:
                found = getattr(found, part)
            return found
    return name
