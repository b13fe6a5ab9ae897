"""Cached graphs of a code object and their trees of guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_TREE = "torch._C._dynamo.guards"

NAMES = (
    Name(
        "torch._dynamo.eval_frame:_debug_get_cache_entry_list",
        "guards",
        "guards cannot be probed for other lengths: no forecast",
    ),
    Name(
        f"{_TREE}:RootGuardManager.get_epilogue_lambda_guards",
        "guards",
        "the closest entry is chosen by torch's texts only",
    ),
    Name(
        f"{_TREE}:RootGuardManager.get_leaf_guards",
        "guards",
        "the closest entry is chosen by torch's texts only",
        alias="root_leaf_guards",
    ),
    Name(
        f"{_TREE}:RootGuardManager.get_child_managers",
        "guards",
        "the closest entry is chosen by torch's texts only",
    ),
    Name(
        f"{_TREE}:GuardManager.get_leaf_guards", "guards", "the closest entry is chosen by torch's texts only"
    ),
    Name(f"{_TREE}:GuardManager.get_source", "guards", "the value that a guard met is not shown"),
    Name(f"{_TREE}:LeafGuard.verbose_code_parts", "guards", "guards have no text"),
    Name(
        "torch._dynamo.guards:GuardManagerWrapper.__init__",
        "guards",
        "the names in a guard's text cannot be evaluated",
        alias="guard_manager_wrapper",
    ),
    Name(
        f"{_TREE}:RootGuardManager.check", "guards", "guards cannot be probed for other lengths: no forecast"
    ),
    Name(f"{_TREE}:RootGuardManager.check_verbose", "guards", "values met are not shown"),
    Name("torch._dynamo.guards:GuardManagerWrapper.check", "guards", "no forecast", alias="manager_check"),
    Name(
        "torch._dynamo.guards:GuardManagerWrapper.check_verbose",
        "guards",
        "values met are not shown",
        alias="manager_check_verbose",
    ),
    Name(
        "torch._C._dynamo.eval_frame:set_guard_complete_hook",
        "monitor",
        "guard lookups cannot be counted (cftdiag run --guard-counts)",
        needed=False,
    ),
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)


def cached(code: CodeType) -> list[Any]:
    """Cache entries of a code object, most recently used first; [] when nothing is cached."""
    return list(_NAMES["debug_get_cache_entry_list"].get()(code))


def lookup_hook(hook: Callable[[bool], bool]) -> Any | None:
    """Have ``hook(hit)`` called after each guard lookup; returns the previous hook.

    ``LookupError`` when this torch has no such hook.
    """
    return _NAMES["set_guard_complete_hook"].find()(hook)


def restore_lookup_hook(previous: Any) -> None:
    """Put back what :func:`lookup_hook` returned."""
    _NAMES["set_guard_complete_hook"].find()(previous)


def invalidated(entry: Any) -> str | None:
    """Why Dynamo has thrown an entry away, None for a valid one."""
    reason = getattr(entry.guard_manager, "invalidation_reason", None)
    return None if reason is None else str(reason)


def scope_of(entry: Any, f_locals: Mapping[str, Any]) -> dict[str, Any]:
    """Names that an entry's guard texts may use, for these locals."""
    manager = entry.guard_manager
    scope = dict(manager.global_scope or {})
    scope.update(manager.closure_vars or {})
    scope["L"] = f_locals
    scope.setdefault("G", manager.global_scope.get("G", {}) if manager.global_scope else {})
    return scope
