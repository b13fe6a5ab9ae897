"""The shape of each batch, and which compiled modules run at all: seen from outside the compiled call, never
by a module hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cftdiag.capture.blocks import ROOT, Blocks
from cftdiag.torch_private import compiled_call
from cftdiag.torch_private.wrappers import unwrap


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
    if compiled_call.call_name(module) is not None:
        yield blocks.name(module) or ROOT, module
        return
    for child in module.children():
        yield from _compiled(child, blocks)


def wrap_call(module: Any, before: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Callable[[], None]:
    """Call ``before(args, kwargs)`` ahead of each compiled call of ``module``; returns a function that takes
    it off again.
    """

    def around(call: compiled_call.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before(args, kwargs)
        return call(*args, **kwargs)

    return compiled_call.wrap(module, around)


def batch_shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    """(rows, length) of the first tensor of two dimensions or more; token ids before activations.

    Activations of that length may have more rows: position ids are often one row for all.
    """
    import torch

    tensors = [
        value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim() >= 2
    ]
    if not tensors:
        return None
    ids = next((t for t in tensors if t.dim() == 2 and not t.is_floating_point()), tensors[0])
    rows = max(int(t.shape[0]) for t in tensors if t is ids or (t.dim() == 3 and t.shape[1] == ids.shape[1]))
    return rows, int(ids.shape[1])


def forward_codes(module: Any) -> set[tuple[str, int]]:
    """(file, first line) of the functions whose frames Dynamo compiles for a module: its own ``forward`` and
    that of what it wraps.
    """
    codes = (getattr(type(m).forward, "__code__", None) for m in (module, unwrap(module)))
    return {(code.co_filename, code.co_firstlineno) for code in codes if code is not None}
