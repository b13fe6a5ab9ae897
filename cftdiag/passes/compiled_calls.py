"""Watching a compiled module from outside its graph: what no event of torch tells.

Nothing here is a module hook: hooks on an in-place compiled module are traced into the graph. The compiled
call is wrapped instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from cftdiag.capture import Recorder, counting, track
from cftdiag.diagnose.engine.probes import LateHook, PassedBy, SavedHook
from cftdiag.frames import Frame
from cftdiag.torch_private import compiled_call, dynamo
from cftdiag.torch_private.dynamo import is_compile_failure
from cftdiag.torch_private.objects import HOOKS, hooks
from cftdiag.torch_private.wrappers import strip, unwrap

#: After this many blocks of one kind failed at the same line, the others of that kind are not tried again.
SAME_FAILURES = 2


#: Called with a compiled module's name, arguments and keyword arguments ahead of each call.
OnCall = Callable[[str, tuple[Any, ...], Mapping[str, Any]], None]


class Watch:
    """Wraps compiled calls: counts them, tells ``on_call`` of each, and in the fullgraph pass keeps a block's
    failure to itself.
    """

    def __init__(self, *, isolate: bool, on_call: OnCall) -> None:
        self.isolate, self._on_call = isolate, on_call
        self.kinds: Mapping[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.last: str | None = None
        """The block that was called last."""
        self.fullgraph: dict[str, bool] = {}
        self.saved_hooks: dict[str, SavedHook] = {}
        self.late_hooks: list[LateHook] = []
        self.backends: set[str] = set()
        """Backends that a subject compiles with by itself."""
        self.marks: dict[str, Mapping[str, list[int]]] = {}
        """``mark_dynamic`` or ``mark_unbacked`` -> parameter of the module's forward -> dimensions."""
        self._failures: dict[str, list[Any]] = {}
        self._hooks: dict[str, tuple[torch.nn.Module, set[tuple[str, str, int]]]] = {}
        self._modules: dict[str, torch.nn.Module] = {}
        self._silent: dict[str, PassedBy] = {}
        self._step = 1
        self._undo: list[Callable[[], None]] = []

    def instrument(self, module: torch.nn.Module, fqn: str, recorder: Recorder) -> None:
        """Wrap the compiled call of ``module``; its name in every report is ``fqn``."""
        track(module, fqn, recorder)
        self._modules[fqn] = module

        def around(call: compiled_call.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._before(module, fqn, args, kwargs)
            if not self.isolate:
                return call(*args, **kwargs)
            return self._apart(module, fqn, call, args, kwargs)

        compiled_call.wrap(module, around)
        self._undo.append(lambda: compiled_call.uncompile(module))

    def depth(self) -> str:
        """Depth that the backends seen so far reach; ``run`` when none was seen (the subject may compile in
        its step).
        """
        if not self.backends:
            return "run"
        depths = [{"eager": "trace", "aot_eager": "joint"}.get(name, "run") for name in self.backends]
        return max(depths, key=("trace", "joint", "run").index)

    def undo(self) -> None:
        """Leave every instrumented module as it was before it was compiled."""
        for fqn in self._silent:
            self._modules[fqn].__dict__.pop("forward", None)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # ---- the compiled call ----

    def _before(
        self, module: torch.nn.Module, fqn: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.calls[fqn] += 1
        self.last = fqn
        if self._silent.pop(fqn, None) is not None:
            del module.__dict__["forward"]  # Dynamo is about to read it
        if fqn not in self._hooks:
            self._first_call(fqn, module)
        for mark, wanted in self.marks.items():
            _mark(mark, module, args, kwargs, wanted)
        self._on_call(fqn, args, kwargs)
        hooks = dynamo.top_saved_tensors_default_hooks(False)
        if hooks is not None:
            self._saved_hooks(fqn, hooks[0])

    def _saved_hooks(self, fqn: str, pack: Any) -> None:
        code = getattr(pack, "__code__", None)
        file = getattr(code, "co_filename", None)
        if file is not None and file.startswith(os.path.dirname(torch.__file__)):
            return  # torch's own checkpointing works block by block
        line = getattr(code, "co_firstlineno", None)
        found = self.saved_hooks.get(fqn) or SavedHook(block=fqn, file=file, line=line)
        self.saved_hooks[fqn] = dataclasses.replace(
            found,
            calls=found.calls + 1,
            hook=f"{os.path.basename(file or '?')}:{found.line} {getattr(pack, '__name__', pack)}",
        )

    def _apart(
        self,
        module: torch.nn.Module,
        fqn: str,
        compiled: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self.fullgraph.get(fqn, True) and not self._known_failure(fqn):
            try:
                result = compiled(*args, **kwargs)
                self.fullgraph.setdefault(fqn, True)
                return result
            except Exception as error:
                if not is_compile_failure(error):
                    raise
                self.fullgraph[fqn] = False
                self._failures.setdefault(self.kinds.get(fqn, fqn), []).append(_failure_key(error))
        return compiled_call.eager_call(module, args, kwargs)

    def _known_failure(self, fqn: str) -> bool:
        failures = self._failures.get(self.kinds.get(fqn, fqn), ())
        if fqn not in self.fullgraph and len(failures) >= SAME_FAILURES and len(set(failures)) == 1:
            self.fullgraph[fqn] = False
            return True
        return False

    # ---- between steps ----

    @property
    def passed_by(self) -> tuple[PassedBy, ...]:
        """The compiled blocks whose compiled call no step made, with the line that called their forward instead."""
        return tuple(self._silent.values())

    def look_past_silent_calls(self) -> None:
        """From now on note who calls the forward of a block whose compiled call was never made.

        No graph has that block in it as long as it stands alone; its forward is its own again at its first compiled call.
        """
        for fqn, module in self._modules.items():
            if self.calls[fqn] or fqn in self._silent or "forward" in module.__dict__:
                continue
            self._silent[fqn] = PassedBy(block=fqn)
            module.forward = self._noting(fqn, module.forward)

    def _noting(self, fqn: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def noted(*args: Any, **kwargs: Any) -> Any:
            known = self._silent.get(fqn)
            if known is not None and known.by is None:
                self._silent[fqn] = dataclasses.replace(known, by=_caller(sys._getframe(1)))
            return forward(*args, **kwargs)

        return noted

    def look_for_late_hooks(self, step: int) -> None:
        """Note hooks that were put on a compiled module's insides after its first compiled call; ``step`` is the one that
        begins.
        """
        self._step = step
        if not _hooks_are_guarded():
            for fqn, (module, known) in self._hooks.items():
                for hook in sorted(_hooks(module) - known):
                    known.add(hook)
                    self._note_hook(fqn, module, hook)

    def _first_call(self, fqn: str, module: torch.nn.Module) -> None:
        """Note hooks that an earlier block of the class has not: its code serves this block, too, as torch guards no
        empty tables of hooks.
        """
        mine = _hooks(module)
        if mine and not _hooks_are_guarded():
            earlier = [
                (name, {hook[:2] for hook in known})
                for name, (other, known) in self._hooks.items()
                if type(other) is type(module)
            ]
            for hook in sorted(mine):
                without = next((name for name, tables in earlier if hook[:2] not in tables), None)
                if without is not None:
                    self._note_hook(fqn, module, hook, without)
        self._hooks[fqn] = (module, mine)

    def _note_hook(
        self, fqn: str, module: torch.nn.Module, hook: tuple[str, str, int], without: str | None = None
    ) -> None:
        path, attribute, hook_id = hook
        function = getattr(module.get_submodule(path), attribute).get(hook_id)
        code = getattr(function, "__code__", None)
        file, line = getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None)
        name = getattr(function, "__name__", type(function).__name__)
        self.late_hooks.append(
            LateHook(
                block=fqn,
                module=f"{fqn}.{path}" if path else fqn,
                hook=f"{os.path.basename(file or '?')}:{line} {name}",
                kind=HOOKS[attribute],
                step=self._step,
                file=file,
                line=line,
                without=without,
            )
        )


def _hooks_are_guarded() -> bool:
    """True where a table of hooks that was empty is guarded, too: then a new hook recompiles."""
    return not getattr(dynamo.config, "skip_nnmodule_hook_guards", True)


@contextlib.contextmanager
def compiles_seen(
    model: torch.nn.Module, watch: Watch, recorder: Recorder, changes: Mapping[str, Any]
) -> Iterator[None]:
    """Instrument what a subject compiles by itself with ``Module.compile`` (its ``wrap`` or its step).

    ``changes`` go over the keyword arguments that the subject gives: that is how a remedy reaches a subject
    that compiles itself.
    """
    original = torch.nn.Module.compile

    def compile(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        kwargs |= changes
        watch.backends.add(str(kwargs.get("backend", "inductor")))
        if kwargs.get("backend") in ("eager", "aot_eager"):
            kwargs["backend"] = counting(kwargs["backend"], recorder)
        original(module, *args, **kwargs)
        names = [name for name, candidate in model.named_modules() if candidate is module]
        if names:
            watch.instrument(module, strip(names[0]) or "<root>", recorder)

    torch.nn.Module.compile = compile  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.compile = original  # type: ignore[method-assign]


def _caller(frame: FrameType | None) -> Frame | None:
    """The innermost line outside of torch from here outwards."""
    torch_folder = os.path.dirname(torch.__file__)
    while frame is not None and frame.f_code.co_filename.startswith(torch_folder):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line, frame.f_globals).strip()
    return Frame(file=file, line=line, function=frame.f_code.co_name, code=code or None)


def is_checkpoint_failure(error: BaseException) -> bool:
    """True for a recomputation that did not repeat its forward."""
    from torch.utils.checkpoint import CheckpointError

    return isinstance(error, CheckpointError)


def _failure_key(error: BaseException) -> tuple[str, str]:
    stack = getattr(error, "real_stack", None)
    last = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else " ".join(str(error).split())[:200]
    return type(error).__name__, last


def _hooks(module: torch.nn.Module) -> set[tuple[str, str, int]]:
    return {
        (path, attribute, key) for path, inner in module.named_modules() for attribute, key, _ in hooks(inner)
    }


def _mark(
    mark: str,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wanted: Mapping[str, list[int]],
) -> None:
    names = list(inspect.signature(unwrap(module).forward).parameters)
    apply = getattr(dynamo, mark)
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            for dim in wanted.get(name, ()):
                apply(value, dim)
