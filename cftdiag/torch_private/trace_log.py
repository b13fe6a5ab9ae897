"""torch's structured trace: the log that tells of every compile."""

from __future__ import annotations

import logging
from types import FrameType

from cftdiag.torch_private.names import Name

TRACE_LOGGER = "torch.__trace"

NAMES = (
    Name("torch._logging._internal:trace_log.name", "record", "nothing can be recorded", equals=TRACE_LOGGER),
    Name(
        "torch._logging._internal:trace_structured",
        "record",
        "nothing can be recorded",
        leading=("name",),
    ),
    Name(
        "torch._logging._internal:trace_structured",
        "record",
        "every record of the trace is built, wanted or not: compiles take longer while recorded",
        alias="trace_structured_name",
        reads=("name",),
        needed=False,
    ),
    Name(
        "torch._logging._internal:trace_structured",
        "record",
        "every artifact of the trace is built, wanted or not: its text is made of the user's own tensors too",
        alias="trace_structured_metadata",
        reads=("metadata_fn",),
        needed=False,
    ),
    Name(
        "torch._logging.structured:INTERN_TABLE",
        "record",
        "the line that turns a size into a constant is told without its file",
        needed=False,
    ),
)


def logger() -> logging.Logger:
    """The logger of the structured trace, set up."""
    import torch._logging  # noqa: F401  (sets the logger up: level, isEnabledFor)

    return logging.getLogger(TRACE_LOGGER)


def interned() -> dict[int, str]:
    """File names by the numbers that torch writes for them in stacks."""
    try:
        from torch._logging.structured import INTERN_TABLE
    except ImportError:
        return {}
    return {number: name for name, number in INTERN_TABLE.items()}


def asks_to_build(caller: FrameType) -> bool:
    """True when ``caller`` is torch asking whether anybody wants the record that it would build."""
    return caller.f_code.co_name == "trace_structured"


def record_asked_for(caller: FrameType) -> str | None:
    """Name of the record that torch asks about, None where it does not say."""
    name = caller.f_locals.get("name")
    return name if isinstance(name, str) else None


def artifact_asked_for(caller: FrameType) -> str | None:
    """Name of the artifact that torch asks about, None where it does not say."""
    told = caller.f_locals.get("metadata_fn")
    metadata = told() if callable(told) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None
