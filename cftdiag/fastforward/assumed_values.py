"""Stated plausible values for what a skipped computation would have decided.

Every rule is a function of shapes only, so that a recomputation and a repeated call agree with each other.
One assumed routing can miss a recompile (an expert with exactly one token is a size that Dynamo specialises),
so a mixture of experts is to be run under at least two of `ROUTING_POLICIES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten
#: operators whose integer output is an index along ``dim`` of the input
_INDEX_OPS = {
    aten.topk,
    aten.sort,
    aten.argsort,
    aten.argmax,
    aten.argmin,
    aten.max,
    aten.min,
    aten.multinomial,
}
_COMPARE = {aten.eq, aten.ne}


def _balanced(rows: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """Row r takes the k distinct indices r*k, r*k+1, ... modulo n: no index is taken twice by a row, all are
    taken equally often.
    """
    return (torch.arange(rows, device=device)[:, None] * k + torch.arange(k, device=device)) % n


def _idle_and_single(rows: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """Balanced, except that the last index is never taken and the one before it once: group sizes 0 and 1."""
    out = _balanced(rows, k, max(n - 2, k), device)
    if n - 2 >= k and rows:
        out[0, 0] = n - 2
    return out


def _all_to_first(rows: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """Every row takes 0 .. k-1: the other n-k are never taken."""
    return torch.arange(k, device=device).expand(rows, k)


_Policy = Callable[[int, int, int, torch.device], torch.Tensor]
_POLICIES: dict[str, _Policy] = {
    "balanced": _balanced,
    "idle_and_single": _idle_and_single,
    "all_to_first": _all_to_first,
}
#: Names for `routing_policy`.
ROUTING_POLICIES: tuple[str, ...] = tuple(_POLICIES)
_routing: _Policy = _balanced


@contextlib.contextmanager
def routing_policy(name: str) -> Iterator[None]:
    """Which indices a skipped ``topk``, ``argmax`` or ``sort`` returns inside the context; the default is
    ``balanced``.
    """
    global _routing
    if name not in _POLICIES:
        raise ValueError(f"unknown routing policy {name!r}; one of {', '.join(_POLICIES)}")
    before, _routing = _routing, _POLICIES[name]
    try:
        yield
    finally:
        _routing = before


_number: Callable[[], float] = lambda: 1.0  # noqa: E731


def numbers_from(source: Callable[[], float]) -> None:
    """Have every skipped floating-point number that Python reads be what ``source`` says, in place of 1.0.

    It is to be finite and the same for as long as the same tensor can be read again.
    """
    global _number
    _number = source


def scalar(dtype: torch.dtype) -> bool | int | float:
    """What Python gets for one element of skipped memory: False for bool, one for an integer, for any other
    number what `numbers_from` was told.
    """
    if dtype is torch.bool:
        return False
    return _number() if dtype.is_floating_point or dtype.is_complex else 1


def fill(out: torch.Tensor, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Write a plausible value into ``out``, a non-floating output of ``func`` computed from skipped inputs.

    Indices follow the routing policy; a tensor equals itself and differs from any other value, so that a
    skipped loss counts as finite; everything else is zero or False.
    """
    packet = func.overloadpacket
    if (
        packet in _INDEX_OPS
        and out.dtype == torch.int64
        and isinstance(args[0], torch.Tensor)
        and args[0].dim()
    ):
        dim = _index_dim(func, args, kwargs)
        if dim is not None:
            _fill_indices(out, args[0], dim % args[0].dim())
            return
    if packet in _COMPARE:
        out.fill_((args[0] is args[1]) == (packet is aten.eq))
        return
    out.zero_()


def _index_dim(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    if func.overloadpacket is aten.multinomial:
        return -1
    arguments = func._schema.arguments
    given = {a.name: value for a, value in zip(arguments, args, strict=False)} | dict(kwargs)
    default = next((a.default_value for a in arguments if a.name == "dim"), -1)
    return given.get("dim", default)


def _fill_indices(out: torch.Tensor, source: torch.Tensor, dim: int) -> None:
    kept = out if out.dim() == source.dim() else out.unsqueeze(dim)
    last = kept.movedim(dim, -1)
    if last.numel():
        k = last.shape[-1]
        last.copy_(_routing(last.numel() // k, k, source.shape[dim], out.device).view(last.shape))
