"""Which of torch's private hooks this torch has, and what is lost without each. Nothing is compiled."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried; ``detail`` says what was seen, or what is lost without it."""

    name: str
    ok: bool
    detail: str


def probes() -> list[Check]:
    """Every private name that the recorder uses, looked up; without the first nothing can be recorded, the
    others only enrich.
    """
    return [_probe(name, lost, look) for name, lost, look in _PROBES]


def _probe(name: str, lost: str, look: Callable[[], bool]) -> Check:
    try:
        found = look()
    except (ImportError, AttributeError, ValueError, TypeError):
        found = False
    return Check(name, found, "present" if found else f"missing: {lost}")


def _get(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _has(*paths: str) -> Callable[[], bool]:
    return lambda: all(_get(path) is not None for path in paths)


def _parameters(path: str, *names: str) -> Callable[[], bool]:
    return lambda: set(names) <= set(inspect.signature(_get(path)).parameters)


_COMPILE = "torch._dynamo.convert_frame:_compile"
_GUARDS = "torch._C._dynamo.guards"

_PROBES: tuple[tuple[str, str, Callable[[], bool]], ...] = (
    (
        "structured trace",
        "nothing can be recorded",
        _has("torch._logging._internal:trace_log", "torch._logging:trace_structured"),
    ),
    (
        "compiled frame",
        "events carry no block and no arguments",
        _parameters(_COMPILE, "frame", "code", "compile_id"),
    ),
    (
        "fullgraph flag",
        "fullgraph failures are told from other failures by their text only",
        _parameters(_COMPILE, "one_graph"),
    ),
    ("cache entries", "entries are read from the code object", _parameters(_COMPILE, "cache_entries")),
    (
        "cached entries",
        "guards cannot be probed for other lengths",
        _has("torch._dynamo.eval_frame:_debug_get_cache_entry_list"),
    ),
    (
        "guard tree",
        "the closest entry is chosen by torch's texts only",
        _has(
            f"{_GUARDS}:RootGuardManager.get_epilogue_lambda_guards",
            f"{_GUARDS}:GuardManager.get_leaf_guards",
        ),
    ),
    (
        "guard check",
        "values met are not shown",
        _has("torch._dynamo.guards:GuardManagerWrapper.check_verbose"),
    ),
    (
        "break exception",
        "a break inside a whole-model compile is booked on the root",
        _parameters("torch._dynamo.symbolic_convert:InstructionTranslatorBase.log_graph_break", "exc"),
    ),
    (
        "compiled call of a module",
        "graphs are not counted per block",
        _has("torch.nn:Module._compiled_call_impl.__class__"),
    ),
)
