"""What stands in for the compiler: the script's own ``torch.compile`` calls, guards and wrappers, another
backend at their end.

``torch.compile`` itself is left alone. The objects that it makes of a backend's name are called by Dynamo for
each graph; only that call is replaced, so that what is compared, guarded and reset stays the script's own.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cftdiag import fastforward
from cftdiag.rehearse import remedies
from cftdiag.rehearse.remedies import Applied
from cftdiag.rehearse.settings import Rehearsal, jsonable
from cftdiag.torch_private import rehearsal

#: Backends that stop after Dynamo, whatever depth was asked for: AOTAutograd is not reached in the real run.
_TRACED_ONLY = frozenset({"eager", "eager_noexcept", "eager_debug"})
_COMPILING = ("inductor", "aot_eager", "aot_eager_decomp_partition")
_KEPT = ("dynamic", "fullgraph", "mode", "options", "backend")


class Compiled:
    """What the script has compiled, and how."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.evaluated = False
        self.finished = False
        """Whether a trainer has made all steps that it was to make."""
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._kwargs: dict[str, Any] = {}

    def add(self, model: Any, kwargs: dict[str, Any]) -> None:
        """One call of ``torch.compile``."""
        owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self._modules.append(weakref.ref(owner))
        self._kwargs |= {key: value for key, value in kwargs.items() if key in _KEPT and value is not None}

    def roots(self) -> list[torch.nn.Module]:
        """Compiled modules that are still there."""
        return [module for ref in self._modules if (module := ref()) is not None]

    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the script's ``torch.compile`` calls, the last ones where they differ."""
        return {key: jsonable(value) for key, value in self._kwargs.items()}

    def note(self, text: str) -> None:
        """Say once what the verdict does not know."""
        if text not in self.notes:
            self.notes.append(text)


def install(settings: Rehearsal, applied: Applied) -> Compiled:
    """Replace what compiles each graph for the rest of this process."""
    compiled = Compiled()
    compile_graph, trace = _backends(settings)
    depth = "codegen" if settings.target else settings.depth

    def by_inductor(self: Any, model_: Any, inputs_: Sequence[Any], **more: Any) -> Callable[..., Any]:
        return compile_graph(model_, inputs_)

    def by_name(self: Any, model_: Any, inputs_: Sequence[Any]) -> Callable[..., Any]:
        if _is_scripts_own(self.compiler_fn) and not rehearsal.registered(
            self.compiler_name, self.compiler_fn
        ):
            # it may count, check or rewrite graphs for the script; what it hands them to is ours
            compiled.note(
                f"backend {jsonable(self.compiler_fn)} is the script's own and was called; torch's backends that it "
                f"looks up by name went to depth {depth}"
            )
            made: Callable[..., Any] = self.compiler_fn(model_, inputs_, **self.kwargs)
            return made
        if self.compiler_name in _TRACED_ONLY:
            return trace(model_, inputs_)
        if self.compiler_name not in _COMPILING:
            compiled.note(
                f"backend {self.compiler_name} was not run: its graphs were taken to depth {depth} instead"
            )
        return compile_graph(model_, inputs_)

    def entered() -> Callable[[], None]:
        if not compiled.evaluated and not torch.is_grad_enabled():
            compiled.evaluated = True
        return _nothing

    _on_compiled_calls(entered)
    rehearsal.replace_backends(
        {name: lambda model_, inputs_, **more: compile_graph(model_, inputs_) for name in _COMPILING}
    )
    rehearsal.CompileByInductor.__call__ = by_inductor
    rehearsal.CompileByName.__call__ = by_name
    _watch_calls(compiled, settings, applied)
    return compiled


def _is_scripts_own(backend: Any) -> bool:
    """True for a backend that is no part of torch and none of ours."""
    module = getattr(backend, "__module__", None) or type(backend).__module__
    return not str(module).startswith(("torch.", "cftdiag.rehearse"))


def _backends(settings: Rehearsal) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(what compiles a graph, what takes one no further than Dynamo does)."""
    if settings.weights:
        from cftdiag.torch_private.dynamo import lookup_backend

        # real weights are computed with, operator by operator
        return lookup_backend("aot_eager" if settings.depth == "joint" else "eager"), lookup_backend("eager")
    if settings.target is not None:
        from cftdiag.target import backend

        return backend(settings.target, keep=settings.count), fastforward.trace_only
    return fastforward.backend_for(settings.depth), fastforward.trace_only


def _watch_calls(compiled: Compiled, settings: Rehearsal, applied: Applied) -> None:
    """Note each call of ``torch.compile``, with a remedy's arguments over the script's own."""
    real, changes = torch.compile, dict(settings.compile_kwargs)

    @functools.wraps(real)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        kwargs |= changes
        if model is not None:
            compiled.add(model, kwargs)
        made = real(model, **kwargs)
        if settings.input_requires_grad and isinstance(getattr(model, "__self__", None), torch.nn.Module):
            return remedies.with_gradients(made, applied)
        return made

    torch.compile = compile  # type: ignore[assignment]


def _on_compiled_calls(enter: Callable[[], Callable[[], None]]) -> None:
    """Call ``enter`` ahead of each call of a compiled function, and what it returns behind it.

    Dynamo has such hooks for its own settings: nothing is put around the script's functions.
    """
    real = rehearsal.OptimizeContext.__init__

    @functools.wraps(real)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.enter_exit_hooks.append(enter)

    rehearsal.OptimizeContext.__init__ = initialise


def _nothing() -> None:
    """Nothing to put back."""
