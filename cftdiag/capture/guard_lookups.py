"""Guard lookups, counted: how often a cache entry failed before another matched, and what checking guards
costs.

Dynamo calls one hook after each lookup, with hit or miss and nothing else. Which code was looked up is read
from the caller's frame (a module's call or ``torch.compile``'s wrapper); the entry that matched is the one
that has moved to the front of the code's entries, so the entries that stood before it are those that failed.
Lookups of resume functions, whose caller is generated code, are counted without entries.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from cftdiag.torch_private import compiled_call, guard_tree


@dataclasses.dataclass(slots=True)
class EntryCount:
    """One cache entry: ``misses`` failed lookups before another entry matched (or none did), ``hits``, and
    the guard that failed when sampled.
    """

    misses: int = 0
    hits: int = 0
    guards: dict[str, int] = dataclasses.field(default_factory=dict)
    """Failing guard -> times seen in samples."""
    check_us: list[float] = dataclasses.field(default_factory=list)
    """Microseconds of one evaluation of all guards of the entry, by sample; at most 1000."""


class Lookups:
    """Counts lookups while open. ``every``: each ``every``-th lookup that passed over an entry asks each such
    entry for its failing guard.
    """

    def __init__(self, every: int = 100, name: Callable[[Any], str | None] = lambda module: None) -> None:
        self.every = max(1, every)
        self.lookups = 0
        self.misses = 0
        self.unknown = 0
        self.samples = 0
        self.cost_s = 0.0
        """Seconds spent in here."""
        self.entries: dict[tuple[str, str], EntryCount] = {}
        """(block or function, compile id) -> counts."""
        self._name = name
        self._orders: dict[CodeType, list[str]] = {}
        self._passed = 0
        self._previous: Any = None
        self._installed = False

    def open(self) -> bool:
        """Install the hook; False when this torch has none."""
        try:
            self._previous = guard_tree.lookup_hook(self._hook)
        except LookupError:
            return False
        self._installed = True
        return True

    def close(self) -> None:
        """Put the previous hook back."""
        if not self._installed:
            return
        self._installed = False
        guard_tree.restore_lookup_hook(self._previous)

    def _hook(self, hit: bool) -> bool:
        start = time.perf_counter()
        try:
            self._count(hit, sys._getframe(1))
        except Exception:  # noqa: BLE001 - runs inside the user's call: whatever the frame holds, the lookup's answer must stand
            self.unknown += 1
        self.cost_s += time.perf_counter() - start
        return self._previous(hit) if self._previous is not None else hit

    def _count(self, hit: bool, caller: FrameType) -> None:
        self.lookups += 1
        self.misses += not hit
        found = _called(caller)
        if found is None:
            self.unknown += 1
            return
        function, args, kwargs = found
        code = function.__code__
        listed = guard_tree.cached(code)
        order = [str(entry.compile_id) for entry in listed]
        before = self._orders.get(code, order)
        self._orders[code] = order
        # The entry that matched is first now; those that stood before it, or all of them on a miss, were
        # evaluated and failed.
        passed = (
            before[: before.index(order[0])] if hit and order and order[0] in before else [] if hit else order
        )
        block = self._block(function, args)
        if hit and order:
            self._entry(block, order[0]).hits += 1
        for entry in passed:
            self._entry(block, entry).misses += 1
        if passed or len(order) == 1:
            self._passed += 1
            if self._passed % self.every == 1 or self.every == 1:
                self._sample(
                    block,
                    function,
                    args,
                    kwargs,
                    {str(e.compile_id): e for e in listed},
                    [*passed, *order[:1]] if hit else passed,
                )

    def _sample(
        self, block: str, function: Any, args: Any, kwargs: Any, entries: dict[str, Any], asked: list[str]
    ) -> None:
        from cftdiag.capture.cached_guards import first_failure

        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        scope = dict(bound.arguments)
        self.samples += 1
        for cid in asked:
            entry = entries.get(cid)
            if entry is None:
                continue
            count = self._entry(block, cid)
            start = time.perf_counter()
            matched = entry.guard_manager.check(scope)
            took = (time.perf_counter() - start) * 1e6
            if len(count.check_us) < 1000:
                count.check_us.append(round(took, 2))
            guard = None if matched else first_failure(entry, scope)
            if guard is not None and (guard.expression in count.guards or len(count.guards) < 50):
                count.guards[guard.expression] = count.guards.get(guard.expression, 0) + 1

    def _entry(self, block: str, cid: str) -> EntryCount:
        return self.entries.setdefault((block, cid), EntryCount())

    def _block(self, function: Any, args: tuple[Any, ...]) -> str:
        return (self._name(args[0]) if args else None) or function.__qualname__

    def to_dict(self, steps: int) -> dict[str, Any]:
        """JSON-ready counts; ``us_per_step`` is this accounting's own cost, ``guard_us_per_step`` what
        torch's guard evaluation costs, estimated from the samples.
        """
        rows = []
        evaluated = 0.0
        for (block, cid), count in sorted(self.entries.items()):
            mean = sum(count.check_us) / len(count.check_us) if count.check_us else None
            evaluated += (count.hits + count.misses) * (mean or 0.0)
            top = sorted(count.guards.items(), key=lambda item: -item[1])[:3]
            guards = [{"guard": guard, "samples": n} for guard, n in top]
            check = None if mean is None else round(mean, 2)
            rows.append(
                {
                    "block": block,
                    "entry": cid,
                    "hits": count.hits,
                    "misses": count.misses,
                    "check_us": check,
                    "guards": guards,
                }
            )
        steps = max(steps, 1)
        return {
            "lookups": self.lookups,
            "misses": self.misses,
            "unknown": self.unknown,
            "samples": self.samples,
            "every": self.every,
            "us_per_step": round(self.cost_s * 1e6 / steps, 2),
            "guard_us_per_step": round(evaluated / steps, 2),
            "entries": rows,
        }


def _called(caller: FrameType) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """(function, args, kwargs) of the call that is being looked up, self included; None when the caller is
    another kind of frame.
    """
    called = compiled_call.called_from(caller)
    if called is None:
        return None
    function, args, kwargs = called
    bound = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", function)
    if not hasattr(plain, "__code__"):
        return None
    return plain, (args if bound is None else (bound, *args)), kwargs
