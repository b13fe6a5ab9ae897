"""The parts of torch that a monitor holds on to beside the recorder: compiles in flight, batch shapes, blocks
that never ran, guard lookups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from cftdiag.capture import batch_shapes
from cftdiag.capture.compile_requests import CompileRequests
from cftdiag.capture.guard_lookups import Lookups
from cftdiag.capture.in_flight import Compiling
from cftdiag.events import Event
from cftdiag.torch_private import dynamo
from cftdiag.torch_private.objects import group_timeout
from cftdiag.torch_private.wrappers import unwrap

#: Limit of torch 2.11 to 2.14, reported until Dynamo is there to be asked.
DEFAULT_LIMIT = 8


class NeverRun(NamedTuple):
    """A module or function that was to be compiled and ran no graph; ``name`` is None without a model."""

    name: str | None
    cls: str
    skipped_file: str | None
    """The file of its forward, where Dynamo skips the frames of that file."""

    def message(self, steps: int) -> str:
        """One sentence for an alarm."""
        what = self.cls if self.name is None else f"{self.name} ({self.cls})"
        why = "" if self.skipped_file is None else f": Dynamo skips the frames of {self.skipped_file}"
        return f"{what} is compiled but has not run compiled in {steps} steps{why}"


class Watched:
    """Installs what is installed at a step's border (never in mid-call) and takes all of it off again."""

    def __init__(
        self,
        recorder: Any,
        *,
        shape: Callable[[tuple[int, int] | None], None],
        compile_start: Callable[[str], None],
        compile_end: Callable[[], None],
    ) -> None:
        self.pending = False
        """A compile has been seen since the last :meth:`install`: there may be modules to watch."""
        self._recorder = recorder
        self._requests = CompileRequests()
        self._requests.__enter__()
        self._shape = shape
        self._compiling = Compiling(compile_start, compile_end)
        self._lookups: Lookups | None = None
        self._undo: dict[int, Callable[[], None]] = {}
        self._names: dict[int, tuple[str, str, frozenset[tuple[str, int]]]] = {}
        self._ran: set[int] = set()
        self._compiled: set[Any] = set()
        self._tapped: int | None = None
        self._timeout: float | None = None
        self.renew()

    def renew(self) -> None:
        """Put back what ``torch._dynamo.reset()`` takes out; does nothing before Dynamo is imported."""
        if dynamo.imported():
            self._compiling.renew()

    def close(self) -> None:
        """Take everything off."""
        self._compiling.close()
        self._requests.__exit__()
        if self._lookups is not None:
            self._lookups.close()
        for undo in self._undo.values():
            undo()
        self._undo.clear()

    def note(self, event: Event) -> None:
        """See an event of the recorder."""
        self._requests.see(event)
        if event.kind == "compile":
            self.pending = True
            if event.compiled.made_graph or event.region == "backward":
                self._compiled |= {
                    event.block,
                    event.block_class,
                    (event.code.file, event.code.line) if event.code else None,
                }

    def install(self) -> list[tuple[str, str]]:
        """Watch compiled modules that are not watched yet: the first one's batches, and of each whether it
        runs at all. Their (name, class).
        """
        self.pending = False
        found = []
        for name, module in batch_shapes.compiled_modules(self._recorder.blocks):
            key = id(module)
            if key in self._names:
                continue
            cls = type(unwrap(module)).__name__
            self._names[key] = (name, cls, frozenset(batch_shapes.forward_codes(module)))
            found.append((name, cls))
            if self._tapped is None:
                self._tapped = key
                self._undo[key] = batch_shapes.wrap_call(module, self._batch)
            else:
                self._undo[key] = batch_shapes.wrap_call(module, functools.partial(self._first_call, key))
        return found

    def never_run(self) -> list[NeverRun]:
        """What was to be compiled and was never called, or called while no code of its own was compiled."""
        found = []
        for key, (name, cls, codes) in self._names.items():
            # Equal blocks share compiled code, and a script may have replaced a forward: name, class or code,
            # any of them is proof.
            if key not in self._ran or not self._compiled & {name, cls, *codes}:
                found.append(NeverRun(name, cls, None))
        return found + self.nothing_compiled({never.name or never.cls for never in found})

    def nothing_compiled(self, known: Collection[str] = ()) -> list[NeverRun]:
        """What was to be compiled and of which no code exists, but for the ``known`` names."""
        told = set(known)
        found = []
        for target, cls, skipped_file in self._requests.idle(self._recorder.blocks.name):
            # without a model there are no names: then all of a class are told once, by the class
            name = self._recorder.blocks.name(target)
            if (name or cls) not in told and id(target) not in self._ran:
                told.add(name or cls)
                found.append(NeverRun(name, cls, skipped_file))
        return found

    def count_guards(self, every: int) -> None:
        """Count guard lookups from now on."""
        self._lookups = Lookups(every, self._block)
        if not self._lookups.open():
            self._lookups = None

    def guard_counts(self, steps: int) -> dict[str, Any] | None:
        """What the lookups say; None when they were not counted."""
        return None if self._lookups is None else self._lookups.to_dict(steps)

    def limit(self) -> int:
        """``recompile_limit`` of the training thread."""
        return dynamo.recompile_limit() or DEFAULT_LIMIT

    def group_timeout(self) -> float | None:
        """Seconds until a collective gives up, once there is a process group."""
        if self._timeout is None:
            self._timeout = group_timeout()
        return self._timeout

    def _batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self._tapped is not None:
                self._ran.add(self._tapped)
            if not dynamo.in_backward():
                self._shape(batch_shapes.batch_shape(args, kwargs))
        except Exception:  # noqa: BLE001 - runs ahead of the user's forward pass; a shape is not worth a training
            self._shape(None)

    def _first_call(self, key: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._ran.add(key)
        self._undo.pop(key, lambda: None)()

    def _block(self, module: Any) -> str | None:
        blocks = self._recorder.blocks
        name = blocks.name(module)
        return None if name is None else blocks.block(name)
