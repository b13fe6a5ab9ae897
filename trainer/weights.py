"""Full tensors of one rank into the sharded parameters of all, one at a time; decompositions spread over the
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cftdiag.torch_private.wrappers import strip
from trainer.osft.linear import FACTORS, decompose
from trainer.osft.surgery import Target


def materialize(model: nn.Module, device: torch.device) -> None:
    """Memory for a model on meta, its values unset; tied weights stay tied."""
    model.to_empty(device=device)
    model.tie_weights()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filler:
    """Writes full tensors that one rank holds into the model of every rank."""

    model: nn.Module
    device: torch.device

    def fill(self, name: str, full: Tensor | None, source: int = 0) -> None:
        """Set one parameter or buffer; ``full`` is its whole value on rank ``source`` and ignored elsewhere.
        Collective.
        """
        parent, _, child = name.rpartition(".")
        target = getattr(self.model.get_submodule(parent), child)
        shape, dtype = target.shape, target.dtype
        if dist.get_rank() == source:
            assert full is not None
            if tuple(full.shape) != tuple(shape):
                raise ValueError(
                    f"weight {name} has shape {tuple(full.shape)}, the model expects {tuple(shape)}"
                )
            value = full.detach().to(self.device, dtype).contiguous()
        else:
            value = torch.empty(shape, dtype=dtype, device=self.device)
        dist.broadcast(value, source)
        with torch.no_grad():
            if isinstance(target, DTensor):
                target.to_local().copy_(_own_part(value, target))
            else:
                target.copy_(value)


def _own_part(value: Tensor, target: DTensor) -> Tensor:
    """This rank's part of a whole value. The last dimension of the mesh splits first: FSDP shards what tensor
    parallelism has split.
    """
    mesh = target.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for dim in reversed(range(mesh.ndim)):
        along = getattr(target.placements[dim], "dim", None)  # None where it is whole on each
        if along is not None:
            size = -(-value.shape[along] // mesh.size(dim))
            begin = min(coordinate[dim] * size, value.shape[along])
            value = value.narrow(along, begin, min(size, value.shape[along] - begin))
    return value


def decompose_spread(
    filler: Filler, values: Mapping[str, Tensor], targets: list[Target], *, upcast: torch.dtype
) -> None:
    """Decompose each target once, on the rank that :func:`assign` gives it to; rank 0 sends the weights, the
    owner broadcasts the factors.
    """
    rank = dist.get_rank()
    for round_ in assign(targets, dist.get_world_size()):
        factors: dict[str, Tensor] = {}
        for owner, target in enumerate(round_):
            if target is None:
                continue
            weight = _send(values.get(target.source), target, owner, filler)
            if owner == rank:
                mine = target
                my_weight = weight
        if round_[rank] is not None:
            assert my_weight is not None
            factors = decompose(my_weight.T if mine.transposed else my_weight, mine.high, upcast=upcast)
        for owner, target in enumerate(round_):
            if target is not None:
                for factor in FACTORS:
                    filler.fill(
                        f"{target.holder}.{factor}", factors.get(factor) if owner == rank else None, owner
                    )


def assign(targets: list[Target], world: int) -> list[list[Target | None]]:
    """Rounds of one target per rank: ``rounds[i][rank]``. Sorted by cost, so that the ranks of a round take
    about equally long.
    """
    ordered = sorted(targets, key=lambda t: (-t.cost, t.name))
    rounds = [ordered[i : i + world] for i in range(0, len(ordered), world)]
    return [[*round_, *[None] * (world - len(round_))] for round_ in rounds]


def _send(weight: Tensor | None, target: Target, owner: int, filler: Filler) -> Tensor | None:
    """Rank 0's weight on the owner's device; None on ranks that are not concerned."""
    rank = dist.get_rank()
    dtype = filler.model.get_parameter(f"{target.holder}.U_high").dtype
    if rank == 0:
        assert weight is not None
        value = weight.detach().to(filler.device, dtype).contiguous()
        if owner != 0:
            dist.send(value, owner)
            return None
        return value
    if rank != owner:
        return None
    value = torch.empty(target.stored, dtype=dtype, device=filler.device)
    dist.recv(value, 0)
    return value


def elements(model: nn.Module, *, without: nn.Parameter | None = None) -> int:
    """Elements of the weights that the parameters stand for. A module whose parameters are packed says in
    ``stands_for``, by their names, how many each is unpacked.
    """
    found: dict[nn.Parameter, int] = {}
    for module in model.modules():
        unpacked: Mapping[str, int] = getattr(module, "stands_for", {})
        for name, parameter in module.named_parameters(recurse=False):
            found[parameter] = unpacked.get(name, parameter.numel())
    return sum(count for parameter, count in found.items() if parameter is not without)


def whole(tensor: Tensor) -> Tensor:
    """A tensor of all ranks, without a gradient history. Collective where it is sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def plain_name(name: str) -> str:
    """A parameter's name without what the checkpoint wrapper adds."""
    return strip(name)


def plain_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by plain name."""
    return {plain_name(name): module for name, module in model.named_modules()}


def plain_names(model: nn.Module) -> list[str]:
    """Plain names of all parameters and buffers, non-persistent ones too; a tied one has its first name."""
    return [plain_name(name) for name, _ in (*model.named_parameters(), *model.named_buffers())]


def values_of(source: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a plain model, a tied one under each of its names."""
    return dict(
        (*source.named_parameters(remove_duplicate=False), *source.named_buffers(remove_duplicate=False))
    )
