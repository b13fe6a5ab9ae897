"""Rules for collectives and the copies of FSDP2: the Python path runs, the bytes do not move.

A collective is issued for real on one element per rank, so that the process group sees every call in order
and returns its own ``Work``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from cftdiag.fastforward.provenance import ASSUMED, SKIPPED, is_float, mark, raise_to, status
from cftdiag.fastforward.rules import CAP, rule, skip_mutable
from cftdiag.torch_private import world


def _one_element(
    whole: torch.Tensor, shard: torch.Tensor, issue: Callable[[torch.Tensor, torch.Tensor], Any]
) -> Any:
    """Issue a collective between a whole tensor and this rank's shard of it with one element per rank."""
    ranks = whole.numel() // max(shard.numel(), 1)
    return issue(whole.view(-1)[:ranks], shard.view(-1)[:1])


def _given(whole: torch.Tensor, shard: torch.Tensor) -> bool:
    """Fill ``whole`` with what this rank gives for every rank, where its values are known; else nobody knows it."""
    known = status(shard) < SKIPPED and whole.numel() <= CAP and whole.numel() % max(shard.numel(), 1) == 0
    if known and shard.numel():
        whole.copy_(shard.reshape(-1).repeat(whole.numel() // shard.numel()).view(whole.shape))
        raise_to(whole, ASSUMED)
    elif not known:
        mark(whole, SKIPPED)
    return known


def _all_gather_list(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    out = func(*args, **kwargs)
    for wholes, shard in zip(args[0], args[1], strict=False):
        for whole in wholes:
            _given(whole, shard)
    return out


def _exchange(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """All-to-all: every rank is taken to send what this one sends."""
    out = func(*args, **kwargs)
    outputs, inputs = ([t] if isinstance(t, torch.Tensor) else t for t in args[:2])
    for received, sent in zip(outputs, inputs, strict=False):
        if received.numel() == sent.numel():
            _given(received, sent)
        else:
            mark(received, SKIPPED)
    return out


def _received(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What another rank sends is not known."""
    out = func(*args, **kwargs)
    for t in args[0]:
        mark(t, SKIPPED)
    return out


def _all_gather(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    whole, shard, *rest = args
    if not is_float(whole) and _given(whole, shard):
        return whole, func(*args, **kwargs)[1]
    _, work = _one_element(whole, shard, lambda w, s: func(w, s, *rest, **kwargs))
    return mark(whole, SKIPPED), work


def _reduce_scatter(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    shard, whole, *rest = args
    _, work = _one_element(whole, shard, lambda w, s: func(s, w, *rest, **kwargs))
    return mark(shard, SKIPPED), work


def _in_place(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    small = [t.view(-1)[:1] if t.is_contiguous() else t for t in args[0]]
    _, work = func(small, *args[1:], **kwargs)
    return list(args[0]), work


def _all_gather_copy_in(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    _, out, _, numel, rank = args
    mark(out, SKIPPED)
    return out.narrow(0, numel * rank, numel), out


def install() -> None:
    """Register the rules; nothing to do for a torch built without distributed."""
    if not dist.is_available():
        return
    import torch.distributed.fsdp

    c10d, fsdp = torch.ops.c10d, torch.ops.fsdp
    rule(world.allgather.default)(_all_gather)
    rule(world.reduce_scatter.default)(_reduce_scatter)
    rule(c10d.allgather_.default)(_all_gather_list)
    rule(c10d.alltoall_.default, c10d.alltoall_base_.default)(_exchange)
    rule(c10d.reduce_scatter_.default, c10d.recv_.default, c10d.scatter_.default)(_received)
    rule(c10d.allreduce_.default, c10d.broadcast_.default)(_in_place)
    rule(fsdp.all_gather_copy_in.default)(_all_gather_copy_in)
    rule(fsdp.split_with_sizes_copy.default, fsdp.chunk_cat.default)(skip_mutable)
