"""What a trainer's callbacks do to the steps: the work, the reads and the compiles inside of them, and what they
change of the model between two steps.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from cftdiag.fastforward.assumptions import EVENTS
from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.settings import CallbackEffect, StateChange, jsonable
from cftdiag.torch_private.wrappers import strip

if TYPE_CHECKING:
    from cftdiag.monitor import Monitor

#: Attributes of modules that torch.compile guards by their value.
_PLAIN = (bool, int, float, str, type(None))
#: Changes and names in one of them that are kept.
CHANGES, NAMES = 20, 4
#: Packages whose callbacks are counted and not suspected of changing the model: a comparison costs milliseconds.
_LIBRARIES = ("transformers.", "lightning.", "pytorch_lightning.", "accelerate.")
_State = dict[tuple[str, str], Any]


class Callbacks:
    """Counts for each class of callbacks, from the first call of one of its hooks."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._rows: dict[str, CallbackEffect] = {}
        self.inside: str | None = None
        """The callback that runs now; its calls of others are its own."""
        self.operators = 0
        self.flops = 0.0

    def effects(self) -> tuple[CallbackEffect, ...]:
        """One row a class, in the order of their first calls."""
        return tuple(self._rows.values())

    def operator_ran(self, flops: float = 0.0) -> None:
        """One operator outside compiled graphs, or a graph with so many floating-point operations."""
        if self.inside is not None:
            self.operators += 1
            self.flops += flops

    def watch(self, cls: type, base: type) -> None:
        """Count what the hooks of ``cls`` do, those of ``base`` left out, which do nothing."""
        if cls.__module__.startswith("cftdiag."):
            return
        for name in dir(cls):
            hook = getattr(cls, name)
            if name.startswith("on_") and callable(hook) and hook is not getattr(base, name, None):
                setattr(cls, name, self._watched(hook))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(real, "_watched_here"):
            return real

        @functools.wraps(real)
        def hook(callback: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside is not None:
                return real(callback, *args, **kwargs)
            modules = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.nn.Module)]
            call = _Call(self, type(callback), modules or self._monitor.models())
            self.inside = call.name
            try:
                return real(callback, *args, **kwargs)
            finally:
                self.inside = None
                self._rows[call.name] = call.ended(self._rows.get(call.name))

        hook._watched_here = True  # type: ignore[attr-defined]
        return hook


class _Call:
    """One call of a hook: how things were at its begin."""

    def __init__(self, counts: Callbacks, cls: type, modules: Sequence[torch.nn.Module]) -> None:
        self.name = cls.__qualname__
        self._counts, self._monitor = counts, counts._monitor
        self._modules = () if cls.__module__.startswith(_LIBRARIES) else tuple(modules)
        self._state = _state(self._modules)
        self._last = self._monitor.events[-1] if self._monitor.events else None
        self._reads, self._operators, self._flops = _reads(), counts.operators, counts.flops
        self._started = time.perf_counter()

    def ended(self, before: CallbackEffect | None) -> CallbackEffect:
        """The row of this callback with this call in it."""
        row = before or CallbackEffect(name=self.name)
        seconds = time.perf_counter() - self._started
        kinds = [event.kind for event in self._events() if event.kind != "compile" or event.counts_as_compile]
        changes = row.changes + tuple(_changes(self._state, _state(self._modules), self._monitor.steps + 1))
        return dataclasses.replace(
            row,
            calls=row.calls + 1,
            seconds=row.seconds + seconds,
            operators=row.operators + self._counts.operators - self._operators,
            flops=row.flops + self._counts.flops - self._flops,
            reads=row.reads + _reads() - self._reads,
            compiles=row.compiles + kinds.count("compile"),
            recompiles=row.recompiles + kinds.count("recompile"),
            graph_breaks=row.graph_breaks + kinds.count("graph_break"),
            changes=changes[:CHANGES],
        )

    def _events(self) -> Iterator[Any]:
        for event in reversed(self._monitor.events):
            if event is self._last:
                return
            yield event


def _reads() -> int:
    """Values of the step that Python has read so far: on a device it waits for each."""
    return sum(count for note, count in EVENTS.items() if note.what == "read")


def _state(modules: Sequence[torch.nn.Module]) -> _State:
    """What guards may compare: plain attributes of modules, and which parameters are trained."""
    found: _State = {}
    for root in modules:
        for path, module in root.named_modules():
            name = strip(path)
            for key, value in vars(module).items():
                if type(value) in _PLAIN and not key.startswith("_"):
                    found[name, key] = value
            for key, parameter in module.named_parameters(recurse=False):
                found[f"{name}.{key}" if name else key, "requires_grad"] = parameter.requires_grad
    return found


def _changes(before: _State, after: _State, step: int) -> Iterator[StateChange]:
    """One row an attribute, with the parameters or modules on which it was set."""
    changed = [key for key, value in after.items() if key in before and before[key] != value]
    for attribute in dict.fromkeys(attribute for _, attribute in changed):
        names = [name for name, other in changed if other == attribute]
        yield StateChange(
            step=step,
            attribute=attribute,
            names=tuple(name or "<root>" for name in names[:NAMES]),
            count=len(names),
            before=jsonable(before[names[0], attribute]),
            after=jsonable(after[names[0], attribute]),
        )


def install(monitor: Monitor) -> Callbacks:
    """Watch the callbacks of transformers', TRL's and Lightning's trainers as they are handed over."""
    counts = Callbacks(monitor)
    after_import("transformers.trainer_callback", functools.partial(_transformers, counts))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        connector = f"{package}.trainer.connectors.callback_connector"
        after_import(connector, functools.partial(_lightning, counts))
    return counts


def _transformers(counts: Callbacks, module: ModuleType) -> None:
    handler, real = module.CallbackHandler, module.CallbackHandler.add_callback

    @functools.wraps(real)
    def add_callback(self: Any, callback: Any) -> None:
        real(self, callback)
        cls = callback if isinstance(callback, type) else type(callback)
        if cls is not module.DefaultFlowCallback:
            counts.watch(cls, module.TrainerCallback)

    handler.add_callback = add_callback


def _lightning(counts: Callbacks, module: ModuleType) -> None:
    connector, real = module._CallbackConnector, module._CallbackConnector.on_trainer_init

    @functools.wraps(real)
    def on_trainer_init(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        for callback in self.trainer.callbacks:
            counts.watch(type(callback), module.Callback)

    connector.on_trainer_init = on_trainer_init
