"""Bytes that a program with skipped arithmetic holds at each moment: every storage from its first tensor to its end.

What is allocated under a fast-forwarding mode has the size that it has in training and lives as long, so the most
that is alive in a step is what the step needs of a device, but for what one kernel needs while it runs.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from cftdiag.target.step_work import StepMemory
from cftdiag.torch_private.dynamo import in_backward
from cftdiag.torch_private.tracing import tree_leaves

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: Namespaces of operators whose results are gathered parameters or gradients on their way to other ranks.
_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "c10d_functional", "fsdp"})
#: What a storage is held for.
PARAMETERS, GRADIENTS, OPTIMIZER, GATHERED = "parameters", "gradients", "optimizer", "gathered"
#: Held since an earlier step and none of these: a cache, an average of the weights, a data set.
OTHER = "other"
#: Made in a forward of this step, and in a backward or an update.
FORWARD, LATER = "saved", "transient"


class _Storage:
    """One allocation. ``born`` is its number in the order of all."""

    __slots__ = ("born", "bytes", "held_for", "ref")

    def __init__(self, bytes_: int, held_for: str, born: int) -> None:
        self.bytes, self.held_for, self.born = bytes_, held_for, born
        self.ref: Any = None


class Allocations:
    """Counts from its making to :meth:`close`; one is active in a process at a time."""

    def __init__(self, models: Callable[[], Iterable[torch.nn.Module]]) -> None:
        self._models = models
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._storages: dict[int, _Storage] = {}
        self._held: collections.Counter[str] = collections.Counter()
        self._now = self._born = self._peak = self._peak_born = self._peak_inside = self._kept = 0
        self._at_peak: collections.Counter[str] = collections.Counter()
        self._in_backward = self._updating = False
        self._before = 0, 0, self._held.copy()
        self._begin()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing(self._resize)  # type: ignore[method-assign, assignment]
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._hooks = (
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        )

    def close(self) -> None:
        """Count no more."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    # ---- what happens ----

    def operator_ran(self, func: Any, out: Any) -> None:
        """One operator outside of compiled graphs has returned."""
        self._turn()
        communicates = getattr(func, "namespace", "") in _COMMUNICATION
        self._add(out, GATHERED if communicates else self._phase())

    def graph_starts(self) -> None:
        """One compiled graph is called; its arguments are held."""
        self._turn()
        self._before = self._now, self._born, self._held.copy()

    def graph_ran(self, outputs: Any, inside: int) -> None:
        """It has returned and let go of them. ``inside`` are the bytes that it needed at most beside what was there
        when it started.
        """
        now, born, held = self._before
        if now + inside > self._peak:
            self._peak, self._peak_born, self._peak_inside, self._at_peak = now + inside, born, inside, held
        self._add(outputs, self._phase())

    def step_ended(self) -> StepMemory:
        """What the step that ends needed; the next one begins."""
        found = self._memory()
        self._sort()
        self._begin()
        return found

    # ---- inside ----

    def _begin(self) -> None:
        self._peak, self._peak_born, self._peak_inside = self._now, self._born, 0
        self._at_peak = self._held.copy()
        self._kept = 0

    def _memory(self) -> StepMemory:
        at = self._at_peak
        return StepMemory(
            parameters=at[PARAMETERS],
            gradients=at[GRADIENTS],
            optimizer=at[OPTIMIZER],
            gathered=at[GATHERED],
            saved=at[FORWARD],
            transient=at[LATER] + self._peak_inside,
            other=at[OTHER],
            kept_for_backward=self._kept,
        )

    def _turn(self) -> None:
        inside = in_backward()
        if inside and not self._in_backward:
            self._kept = max(self._kept, self._held[FORWARD])
        self._in_backward = inside

    def _phase(self) -> str:
        return LATER if self._in_backward or self._updating else FORWARD

    def _add(self, values: Any, held_for: str) -> None:
        for value in tree_leaves(values):
            if type(value) in _PLAIN and value.device.type != "meta":
                self._note(value, held_for)
        self._look()

    def _note(self, tensor: torch.Tensor, held_for: str) -> _Storage | None:
        try:
            storage = tensor.untyped_storage()
            key, bytes_ = storage._cdata, storage.nbytes()
        except (NotImplementedError, RuntimeError):
            return None  # a layout without one storage
        found = self._storages.get(key)
        if found is not None:
            self._grow(found, bytes_ - found.bytes)
            return found
        self._born += 1
        found = self._storages[key] = _Storage(bytes_, held_for, self._born)
        found.ref = weakref.ref(storage, functools.partial(self._died, key, found))
        self._count(held_for, bytes_)
        return found

    def _died(self, key: int, storage: _Storage, _ref: Any) -> None:
        if self._storages.get(key) is storage:
            del self._storages[key]
        self._count(storage.held_for, -storage.bytes)
        storage.bytes = 0

    def _grow(self, storage: _Storage, more: int) -> None:
        if more:
            storage.bytes += more
            self._count(storage.held_for, more)

    def _count(self, held_for: str, more: int) -> None:
        self._held[held_for] += more
        self._now += more

    def _look(self) -> None:
        if self._now > self._peak:
            self._peak, self._peak_born, self._peak_inside = self._now, self._born, 0
            self._at_peak = self._held.copy()

    def _resizing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            done = real(storage, size)
            found = self._storages.get(storage._cdata)
            if found is not None:
                # FSDP frees and refills the parameters that it has gathered so
                self._become(found, GATHERED)
                self._grow(found, storage.nbytes() - found.bytes)
                self._look()
            return done

        return resize_

    def _become(self, storage: _Storage, held_for: str) -> None:
        if storage.held_for == held_for:
            return
        self._held[storage.held_for] -= storage.bytes
        self._held[held_for] += storage.bytes
        storage.held_for = held_for

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Gradients are told when they are used; until then they are something that a backward made."""
        self._optimizers.add(optimizer)
        self._updating = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = None if parameter.grad is None else self._note(_local(parameter.grad), GRADIENTS)
                if found is None or found.held_for == GRADIENTS:
                    continue
                if found.born <= self._peak_born:
                    self._at_peak[found.held_for] -= found.bytes
                    self._at_peak[GRADIENTS] += found.bytes
                self._become(found, GRADIENTS)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updating = False

    def _sort(self) -> None:
        """Tell parameters and states of optimizers from what else lives from step to step."""
        known: dict[int, str] = {}
        tensors: list[tuple[Any, str]] = []
        for model in self._models():
            tensors += [(t, PARAMETERS) for t in (*model.parameters(), *model.buffers())]
        for optimizer in self._optimizers:
            tensors += [(p, PARAMETERS) for group in optimizer.param_groups for p in group["params"]]
            tensors += [
                (v, OPTIMIZER)
                for v in tree_leaves([dict(state) for state in optimizer.state.values()])
                if isinstance(v, torch.Tensor)
            ]
        for tensor, held_for in tensors:
            for part in _parts(_local(tensor)):
                found = self._note(part, held_for)
                if found is not None:
                    known.setdefault(found.born, held_for)
        for storage in list(self._storages.values()):
            if storage.held_for not in (GATHERED, GRADIENTS) or storage.born in known:
                self._become(storage, known.get(storage.born, OTHER))


def _local(tensor: Any) -> Any:
    """This rank's part of a sharded tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The plain tensors that a wrapper subclass holds: quantised weights and their scales."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in _parts(getattr(tensor, name))]
