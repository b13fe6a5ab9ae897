"""The shape of each batch, and which compiled modules run at all: seen from outside the compiled call, never
by a module hook.

A hook on a compiled module is traced into its graph. Here the compiled call itself is wrapped
(``_compiled_call_impl`` of a module compiled in place, ``forward`` of ``torch.compile(module)``), and a
wrapper that meets tracing steps aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cftdiag.capture.blocks import ROOT, Blocks, unwrap


def compiled_modules(blocks: Blocks) -> list[tuple[str, Any]]:
    """(name, module) of every module of the watched models that is compiled by itself; those inside a
    compiled one are left out.
    """
    found: list[tuple[str, Any]] = []
    for ref in blocks.roots:
        root = ref()
        if root is not None:
            found += _compiled(root, blocks)
    return found


def _compiled(module: Any, blocks: Blocks) -> Iterator[tuple[str, Any]]:
    if _call_name(module) is not None:
        yield blocks.name(module) or ROOT, module
        return
    for child in module.children():
        yield from _compiled(child, blocks)


def _call_name(module: Any) -> str | None:
    """The attribute that holds a module's compiled call; None when it is not compiled."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "_compiled_call_impl"
    return "forward" if "_orig_mod" in module._modules else None


def wrap_call(module: Any, before: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Callable[[], None]:
    """Call ``before(args, kwargs)`` ahead of each compiled call of ``module``; returns a function that takes
    it off again.
    """
    import torch

    name = _call_name(module)
    if name is None:
        return _nothing
    own = name in module.__dict__
    call = getattr(module, name)
    compiling = torch.compiler.is_compiling

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            before(args, kwargs)
        return call(*args, **kwargs)

    setattr(module, name, watched)

    def undo() -> None:
        # Someone may have wrapped it again since, or compiled it anew: only our own layer is taken off.
        if module.__dict__.get(name) is watched:
            if own:
                setattr(module, name, call)
            else:
                delattr(module, name)

    return undo


def in_backward() -> bool:
    """True inside a backward pass: a call there is a checkpoint's recomputation, not a new batch."""
    import torch

    return torch._C._current_graph_task_id() != -1


def batch_shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    """(rows, length) of the first tensor of two dimensions or more; token ids before activations."""
    import torch

    tensors = [
        value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim() >= 2
    ]
    if not tensors:
        return None
    ids = next((t for t in tensors if t.dim() == 2 and not t.is_floating_point()), tensors[0])
    return int(ids.shape[0]), int(ids.shape[1])


def forward_codes(module: Any) -> set[tuple[str, int]]:
    """(file, first line) of the functions whose frames Dynamo compiles for a module: its own ``forward`` and
    that of what it wraps.
    """
    codes = (getattr(type(m).forward, "__code__", None) for m in (module, unwrap(module)))
    return {(code.co_filename, code.co_firstlineno) for code in codes if code is not None}


def _nothing() -> None:
    """Undo for a module that is not compiled."""
