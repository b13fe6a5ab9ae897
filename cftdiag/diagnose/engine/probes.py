"""What no event of torch tells, found by watching behaviour: the facts that a check or a monitor hands to the
diagnosis beside the events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cftdiag.details import ErrorDetail
from cftdiag.diagnose.wrong_code import WrongCode
from cftdiag.frames import Frame


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LateHook:
    """A hook on a module inside a compiled block that code compiled without it ignores: put there after the block's
    first compiled call, or on this block and not on one of its class that was compiled before.
    """

    block: str
    module: str
    hook: str
    kind: str = "forward"
    step: int = 0
    """The step at which it was first there for a compiled call."""
    file: str | None = None
    line: int | None = None
    without: str | None = None
    """The block of its class that was called before and has no such hook; None for a hook that came late."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedHook:
    """A block that ran compiled under ``torch.autograd.graph.saved_tensors_hooks`` other than a checkpoint's."""

    block: str
    calls: int = 0
    """Compiled calls of the block that ran under the hooks."""
    hook: str | None = None
    file: str | None = None
    line: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PassedBy:
    """A compiled block whose compiled call no step makes."""

    block: str
    by: Frame | None = None
    """The line that calls its forward instead; None where nothing runs the block."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The value that differs most between compiled and eager."""

    name: str = ""
    block: str | None = None
    eager: float | None = None
    compiled: float | None = None
    max_abs: float | None = None
    rel: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """The comparison of compiled with eager."""

    ok: bool = True
    backend: str | None = None
    failed: tuple[str, ...] = ()
    """Names of the values that differ."""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings in force that are known to change results."""
    precision: str | None = None
    """``low`` where half precision is in play, else ``high``."""
    worst: Worst = dataclasses.field(default_factory=Worst)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timeout:
    """The pass was stopped while it compiled."""

    seconds: float
    step: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SkippedFrame:
    """What was to be compiled and ran no graph, for its file is one that Dynamo skips."""

    block: str | None
    cls: str | None
    file: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """All that was found by watching; every field may stay at its default."""

    late_hooks: tuple[LateHook, ...] = ()
    never_run: tuple[str, ...] = ()
    """Blocks that were compiled and whose compiled code was never called."""
    passed_by: tuple[PassedBy, ...] = ()
    """Those of them that were watched for a step."""
    skipped_frames: tuple[SkippedFrame, ...] = ()
    calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How often each compiled block was called."""
    saved_tensor_hooks: tuple[SavedHook, ...] = ()
    numerics: Numerics | None = None
    wrong_code: tuple[WrongCode, ...] = ()
    timeout: Timeout | None = None
    main_thread_limit: int | None = None
    """``recompile_limit`` as the main thread sees it."""
    captured_error: ErrorDetail | None = None
    """An exception that ended the run and is not among the events."""
