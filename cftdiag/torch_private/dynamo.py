"""Dynamo: its settings, backends, exceptions, marks, and the id of the compile under way."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_BACKENDS = "torch._dynamo.backends.registry"

NAMES = (
    Name("torch._dynamo:config", "trace", "limits are not known"),
    Name("torch._dynamo:config.recompile_limit", "trace", "the recompile limit is not known"),
    Name(
        "torch._dynamo:config.disable",
        "trace",
        "a check under TORCH_COMPILE_DISABLE finds blocks that run no graph, and does not say why",
        alias="config_disable",
        needed=False,
    ),
    Name("torch._dynamo:reset", "trace", "a check cannot start from an empty cache"),
    Name("torch._dynamo:disable", "trace", "graphs of depth trace cannot be run"),
    Name(
        "torch._dynamo.eval_frame:skip_code",
        "trace",
        "after a break the check would count compiles of its own functions",
    ),
    Name("torch._dynamo:graph_break", "trace", "the self-test cannot provoke a break"),
    Name(f"{_BACKENDS}:lookup_backend", "trace", "a backend cannot be found by its name"),
    Name(f"{_BACKENDS}:list_backends", "trainer", "an unknown backend's message lists no known ones"),
    Name("torch._dynamo.exc:InvalidBackend", "trace", "an unknown backend is told with a traceback"),
    Name("torch._dynamo.exc:TorchDynamoException", "trace", "a block that cannot be captured ends its pass"),
    Name(
        "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode",
        "trace",
        "a block that cannot be captured ends its pass",
    ),
    Name(
        "torch.fx.experimental.symbolic_shapes:ConstraintViolationError",
        "trace",
        "a block that cannot be captured ends its pass",
    ),
    Name("torch._guards:CompileContext.current_compile_id", "trace", "graphs are not counted by block"),
    Name(
        "torch._guards:TracingContext.try_get", "codegen for a GPU", "a graph cannot be moved to the device"
    ),
    Name("torch._dynamo.decorators:mark_dynamic", "remedies", "mark_dynamic cannot be tried as a remedy"),
    Name("torch._dynamo.decorators:mark_unbacked", "remedies", "mark_unbacked cannot be tried as a remedy"),
    Name(
        "torch._dynamo.convert_frame:register_bytecode_hook",
        "kernels",
        "the rewritten bytecode is not shown (cftdiag kernels --bytecode)",
    ),
    Name("torch:_C._current_graph_task_id", "monitor", "a recomputation is taken for a new batch"),
    Name(
        "torch:_C._autograd._top_saved_tensors_default_hooks",
        "trace",
        "saved-tensor hooks around a block are not seen",
    ),
)
_NAMES = by_alias(NAMES)

#: What mark_dynamic and its like leave on a tensor: guards ask for it.
MARKS = tuple(
    f"_dynamo_{kind}_indices" for kind in ("dynamic", "weak_dynamic", "unbacked", "strict_unbacked", "static")
)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def imported() -> bool:
    """True once Dynamo has been imported; asking does not import it."""
    return "torch._dynamo" in sys.modules


def settings_there(names: Iterable[str]) -> tuple[str, ...]:
    """Those of some settings (``torch._inductor.config.numerics``) that this torch has. Imports their modules."""
    found = []
    for dotted in names:
        module, _, name = dotted.rpartition(".")
        try:
            there = hasattr(importlib.import_module(module), name)
        except ImportError:
            there = False
        found += [dotted] if there else []
    return tuple(found)


def recompile_limit() -> int | None:
    """``recompile_limit`` as this thread sees it; None before Dynamo is imported or where the name is
    another.
    """
    settings = getattr(sys.modules.get("torch._dynamo"), "config", None)
    limit = getattr(settings, "recompile_limit", None)
    return limit if isinstance(limit, int) else None


def switched_off() -> str | None:
    """What makes torch.compile do nothing in this process; None where it compiles."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "TORCHDYNAMO_DISABLE=1"
    settings = _NAMES["config"].get()
    return (
        "TORCH_COMPILE_DISABLE=1 (torch._dynamo.config.disable)"
        if getattr(settings, "disable", False)
        else None
    )


def current_compile_id() -> str | None:
    """Id of the compile under way in this thread, None outside one."""
    found = _NAMES["current_compile_id"].get()()
    return None if found is None else str(found)


def in_backward() -> bool:
    """True inside a backward pass: a call there is a checkpoint's recomputation, not a new batch."""
    import torch

    return torch._C._current_graph_task_id() != -1


def is_compile_failure(error: BaseException) -> bool:
    """True for what Dynamo, AOTAutograd or the backend raised, not the model."""
    # a fullgraph call of which nothing was compiled ends in a plain RuntimeError
    nothing = isinstance(error, RuntimeError) and "found no compiled frames" in str(error)
    names = ("TorchDynamoException", "GuardOnDataDependentSymNode", "ConstraintViolationError")
    return nothing or isinstance(error, tuple(_NAMES[name].get() for name in names))
