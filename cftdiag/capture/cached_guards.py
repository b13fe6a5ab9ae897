"""Cached guards against a frame's locals: which entry came closest, what it expected, what it met. Nothing of
the model is run.

torch reports the first failing guard of each entry only, so an entry that fails by ``requires_grad`` may fail
by size as well. Here the whole tree of guards is walked and every failing one counted; a tensor's guard
counts once per property that differs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

from cftdiag import guards
from cftdiag.capture import recompile_reasons
from cftdiag.capture.describe import short_repr
from cftdiag.events import Guard
from cftdiag.torch_private import guard_tree

#: Guards that remember tensors between calls: asked out of turn they answer wrongly.
_STATEFUL = frozenset(
    {
        "NO_TENSOR_ALIASING",
        "OBJECT_ALIASING",
        "STORAGE_OVERLAPPING",
        "SYMBOLIC_SHAPE_GUARD",
        "RelationalGuard",
    }
)

#: A whole model's tree may hold tens of thousands of managers; counting stops there.
_MANAGERS = 50_000


def probe(code: CodeType, f_locals: Mapping[str, Any]) -> list[tuple[str, bool, Guard | None]]:
    """Ask every cached entry of ``code`` whether it would serve a call with these locals.

    Returns (compile id, matches, first failing guard or None), most recently used entry first; [] when
    nothing is cached. Costs some 20 us an entry. Probe on the device the code was compiled for: tensors are
    compared by device too.
    """
    found = []
    scope = dict(f_locals)
    for entry in guard_tree.cached(code):
        ok = guard_tree.invalidated(entry) is None and bool(entry.guard_manager.check(scope))
        found.append((str(entry.compile_id), ok, None if ok else first_failure(entry, scope)))
    return found


def first_failure(entry: Any, f_locals: Mapping[str, Any]) -> Guard | None:
    """The guard that torch finds failing first for these locals, with its values; None when all hold."""
    invalid = guard_tree.invalidated(entry)
    if invalid is not None:
        return Guard(expression=invalid)
    info = entry.guard_manager.check_verbose(f_locals)
    if info.result:
        return None
    parts = list(info.verbose_code_parts)
    scope = guard_tree.scope_of(entry, f_locals)
    for part in parts:
        if len(parts) == 1 or not _holds(part, scope):
            return complete(recompile_reasons.parse(part).guard, scope)
    return None


def failures(entry: Any, f_locals: Mapping[str, Any]) -> list[Guard]:
    """Every guard of an entry that fails for these locals, in torch's check order as far as the tree tells
    it.
    """
    manager = entry.guard_manager
    scope = guard_tree.scope_of(entry, f_locals)
    found: list[Guard] = []
    todo = [manager.root]
    for _ in range(_MANAGERS):
        if not todo:
            break
        node = todo.pop(0)
        reached, value = _value(node.get_source(), scope)
        if not reached:
            found.append(Guard(expression=f"{node.get_source()} does not exist", source=node.get_source()))
            continue
        failed = _leaves(node, value, scope)
        found += failed
        if not any(f.condition.stage in ("type", "other") for f in failed):
            todo += node.get_child_managers()
    for leaf in manager.root.get_epilogue_lambda_guards():
        found += [_failure(part, scope) for part in leaf.verbose_code_parts() if not _holds(part, scope)]
    return found


def complete(guard: Guard, scope: dict[str, Any]) -> Guard:
    """The guard with ``actual`` and ``value_type`` evaluated from its source, where that has no side effect
    and works.
    """
    source = guard.source
    condition = guard.condition
    if condition.kind == "state" and "grad_mode" in str(condition.key):
        return _in_grad_mode(guard)
    if source is None:
        return guard
    guard = dataclasses.replace(guard, owner=_owner(guard, scope))
    if guard.value_type is not None:
        return guard
    reached, value = _value(source, scope)
    if not reached:
        return guard
    if condition.kind in ("length", "keys"):
        try:
            met = repr(len(value) if condition.kind == "length" else list(value))[:200]
        except TypeError:
            return guard
        return dataclasses.replace(guard, actual=met, value_type=type(value).__name__)
    return dataclasses.replace(
        guard,
        actual=guard.actual or short_repr(value),
        value_type=type(value).__name__,
    )


def _owner(guard: Guard, scope: dict[str, Any]) -> str | None:
    """What holds what a guard reads: a cache of keys and values; of a global's attribute a class, a module or
    another object.
    """
    condition = guard.condition
    for holder in guards.holders(guards.full_source(condition.source)):
        reached, value = _value(holder, scope)
        if reached and type(value).__module__ == "transformers.cache_utils":
            return "cache"
    if condition.root != "G" or not condition.attributes:
        return None
    holder = condition.source.removesuffix(f".{condition.attributes[-1]}")
    reached, value = _value(holder, scope)
    if not reached:
        return None
    return "class" if isinstance(value, type) else "module" if isinstance(value, ModuleType) else "object"


def _leaves(node: Any, value: Any, scope: dict[str, Any]) -> list[Guard]:
    found: list[Guard] = []
    for leaf in node.get_leaf_guards():
        kind = type(leaf).__name__
        if kind in _STATEFUL:
            continue
        if kind == "LAMBDA_GUARD":
            found += [_failure(part, scope) for part in leaf.verbose_code_parts() if not _holds(part, scope)]
        elif not _check(leaf, value):
            found += _explain(kind, leaf.verbose_code_parts(), value, scope)
    return found


def _check(leaf: Any, value: Any) -> bool:
    try:
        return bool(leaf(value))
    except Exception:  # noqa: BLE001 - a guard on an object of another type may raise anything: it does not hold
        return False


def _explain(kind: str, parts: list[str], value: Any, scope: dict[str, Any]) -> list[Guard]:
    if kind == "TENSOR_MATCH" and parts:
        differing = tensor_differences(parts[0], value)
        if differing:
            return differing
    if kind == "GLOBAL_STATE":
        return [_global_state(parts)]
    return [_failure(parts[0], scope)] if parts else []


def _global_state(parts: list[str]) -> Guard:
    """The failing guard on torch's global state; what of it changed is told for the gradient mode, the
    everyday case.
    """
    import torch

    expected = guards.global_state(parts[0]).get("grad_mode") if parts else None
    if expected is not None and expected is not torch.is_grad_enabled():
        return _in_grad_mode(Guard(expression="GLOBAL_STATE changed: grad_mode", source="grad_mode"))
    return Guard(expression="GLOBAL_STATE changed")


def _in_grad_mode(guard: Guard) -> Guard:
    """The guard with the gradient mode of now, and the other one as what it was compiled for."""
    import torch

    now = torch.is_grad_enabled()
    return dataclasses.replace(guard, expected=str(not now), actual=str(now), value_type="bool")


def _failure(part: str, scope: dict[str, Any]) -> Guard:
    return complete(recompile_reasons.parse(part).guard, scope)


def tensor_differences(text: str, value: Any) -> list[Guard]:
    """The properties by which a value differs from a ``check_tensor(...)`` text, in the order torch checks
    them.
    """
    check = guards.tensor_check(text)
    if check is None:
        return []
    name = guards.local_names(check.source)
    found: list[Guard] = []

    def differs(what: str, where: str, expected: Any, actual: Any, index: int | None = None) -> None:
        at = "" if index is None else f" at index {index}"
        sentence = f"tensor '{name}' {what} mismatch{at}. expected {expected}, actual {actual}"
        if what == "type":
            sentence = f"expected type of '{name}' to be a tensor type, but found <class '{actual}'>"
        found.append(
            Guard(
                expression=sentence,
                source=where,
                expected=str(expected),
                actual=str(actual),
                value_type=type(value).__name__,
            )
        )

    source = check.source
    if not hasattr(value, "requires_grad"):
        differs("type", source, check.cls, type(value).__name__)
        return found
    if type(value).__name__ != check.cls:
        differs("type", source, check.cls, type(value).__name__)
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != check.dtype:
        differs("dtype", f"{source}.dtype", check.dtype, dtype)
    if bool(value.requires_grad) != check.requires_grad:
        differs("requires_grad", f"{source}.requires_grad", check.requires_grad, bool(value.requires_grad))
    for what, expected in (("size", check.size), ("stride", check.stride)):
        actual = [int(n) for n in getattr(value, what)()]
        if len(expected) != len(actual):
            differs("rank", f"{source}.dim()", len(expected), len(actual))
            break
        for i, (want, have) in enumerate(zip(expected, actual, strict=True)):
            if want not in (None, have):
                differs(what, f"{source}.{what}()[{i}]", want, have, i)
                # Strides follow sizes: counting both would make one changed length look like several.
                if what == "stride":
                    break
        if any(f.condition.kind == "size" for f in found):
            break
    return found


def _value(source: str, scope: dict[str, Any]) -> tuple[bool, Any]:
    """(True, value) of a guard source; (False, None) where the objects met have no such part."""
    if source in ("L", "G"):
        return True, scope[source]
    try:
        return True, eval(_compiled(source), scope)  # torch's own accessor expression over the frame's locals
    except Exception:  # noqa: BLE001 - any object of the user's may raise anything when an attribute is missing
        return False, None


def _holds(part: str, scope: dict[str, Any]) -> bool:
    try:
        return bool(eval(_compiled(part), scope))  # torch's own guard expression
    except Exception:  # noqa: BLE001 - a part that cannot be evaluated here says nothing
        return True


@functools.lru_cache(maxsize=8192)
def _compiled(text: str) -> CodeType:
    return compile(text, "<guard>", "eval")
