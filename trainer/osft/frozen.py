"""The frozen directions of sharded OSFTLinears, gathered a bucket at a time.

FSDP2 shards every factor on its first dimension. U is N x k: each rank holds rows of U_high and of U_low, so
that U_high^T X is a sum over ranks. V is k x M: each rank holds some directions of V_high and some of V_low,
so that V_high must be gathered. Both go through buckets of bounded size. Buckets are cut by global shapes,
and so alike on all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from trainer.osft.experts import OSFTExperts
from trainer.osft.linear import OSFTLinear

# The newer name of the same collective; the older one warns where both exist.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Pick = Callable[[OSFTLinear | OSFTExperts], Tensor | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    layer: OSFTLinear
    start: int
    stop: int
    elements: int


class Frozen:
    """The factored layers of a model and the group that their factors are sharded over."""

    def __init__(
        self, layers: Sequence[OSFTLinear], *, cap_bytes: int, experts: Sequence[OSFTExperts] = ()
    ) -> None:
        """One of ``layers`` and ``experts`` is not empty; ``cap_bytes`` bounds what one bucket gathers; a single
        row or column that is larger is a bucket of its own.
        """
        self.layers, self.experts = list(layers), list(experts)
        self._cap = cap_bytes
        first = self.layers[0] if self.layers else self.experts[0]
        self._group, self._world = shard_group(first.U_high)

    @classmethod
    def of(cls, model: nn.Module, *, cap_bytes: int) -> Frozen | None:
        """Of all factored layers in a model; None where there are none."""
        layers = [module for module in model.modules() if isinstance(module, OSFTLinear)]
        experts = [module for module in model.modules() if isinstance(module, OSFTExperts)]
        return cls(layers, cap_bytes=cap_bytes, experts=experts) if layers or experts else None

    def by_expert(self, layer: OSFTExperts) -> Iterator[slice]:
        """This rank's experts of a layer, some at a time: each rank has whole ones, because their number is
        what they are sharded on.
        """
        u_high, u_low = local(layer.U_high), local(layer.U_low)
        each = max(u_high.shape[1], u_high.shape[2]) * max(u_low.shape[2], 1)
        some = max(1, self._cap // (each * compute_dtype(u_high).itemsize))
        for start in range(0, u_high.shape[0], some):
            yield slice(start, start + some)

    def coefficients(self, pick: Pick) -> Iterator[tuple[OSFTLinear, slice, Tensor]]:
        """``(layer, columns, U_high^T X[:, columns])`` for the U-shaped ``X = pick(layer)``, in float32 or
        wider. One all-reduce a bucket.
        """
        pieces = []
        for layer in self.layers:
            if pick(layer) is not None:
                high, low = layer.U_high.shape[1], layer.U_low.shape[1]
                pieces += _cut(layer, low, high, self._cap // compute_dtype(layer.U_high).itemsize)
        for bucket in self._buckets(pieces, lambda p: compute_dtype(p.layer.U_high).itemsize):
            first = bucket[0].layer.U_high
            buffer = torch.empty(
                sum(p.elements for p in bucket), dtype=compute_dtype(first), device=local(first).device
            )
            views = []
            for piece, flat in zip(bucket, buffer.split([p.elements for p in bucket]), strict=True):
                columns = slice(piece.start, piece.stop)
                view = flat.view(-1, piece.stop - piece.start)
                high, x = local(piece.layer.U_high), local(_given(pick(piece.layer)))
                torch.mm(high.to(buffer.dtype).T, x[:, columns].to(buffer.dtype), out=view)
                views.append((piece.layer, columns, view))
            self.sum(buffer)
            yield from views

    def directions(self, pick: Pick) -> Iterator[tuple[OSFTLinear, Tensor]]:
        """``(layer, rows of V_high)`` for layers whose ``pick(layer)`` is not None: all rows once, some at a
        time, zero rows among them.

        One all-gather a bucket.
        """
        pieces = []
        for layer in self.layers:
            if pick(layer) is not None:
                rows, columns = layer.V_high.shape
                pieces += _cut(
                    layer,
                    -(-rows // self._world),
                    columns,
                    self._cap // (layer.V_high.element_size() * self._world),
                )
        for bucket in self._buckets(pieces, lambda p: p.layer.V_high.element_size() * self._world):
            first = local(bucket[0].layer.V_high)
            # Uneven shards are filled up with zero rows, which project nothing.
            mine = first.new_zeros(sum(p.elements for p in bucket))
            for piece, flat in zip(bucket, mine.split([p.elements for p in bucket]), strict=True):
                rows = local(piece.layer.V_high)[piece.start : piece.stop]
                flat[: rows.numel()].copy_(rows.reshape(-1))
            everyone = mine.new_empty(self._world, mine.numel())
            if self._group is None:
                everyone[0] = mine
            else:
                _all_gather(everyone.view(-1), mine, group=self._group)
            for piece, part in zip(bucket, everyone.split([p.elements for p in bucket], dim=1), strict=True):
                yield piece.layer, part.reshape(-1, piece.layer.V_high.shape[1]).to(compute_dtype(first))

    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor`` summed over the ranks of the shards, in place."""
        if self._group is not None:
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def _buckets(self, pieces: list[_Piece], itemsize: Callable[[_Piece], int]) -> Iterator[list[_Piece]]:
        bucket: list[_Piece] = []
        size = 0
        for piece in pieces:
            bytes_ = piece.elements * itemsize(piece)
            if bucket and size + bytes_ > self._cap:
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += bytes_
        if bucket:
            yield bucket


def _cut(layer: OSFTLinear, count: int, width: int, elements: int) -> list[_Piece]:
    """``count`` rows (or columns) of ``width`` in pieces of at most ``elements``, at least one row each."""
    each = max(1, elements // max(width, 1))
    return [
        _Piece(layer, start, min(start + each, count), (min(start + each, count) - start) * width)
        for start in range(0, count, each)
    ]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without a gradient history."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def shard_group(tensor: Tensor) -> tuple[Any, int]:
    """The process group that a parameter is sharded over, and its size; ``(None, 1)`` for one that is whole."""
    if isinstance(tensor, DTensor):
        for dim, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard) and tensor.device_mesh.size(dim) > 1:
                return tensor.device_mesh.get_group(dim), tensor.device_mesh.size(dim)
    return None, 1


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """What projections are computed in: float32 or wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
