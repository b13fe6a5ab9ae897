"""Tensor parallelism of dense blocks: the projections of attention and MLP are split over the ranks of a mesh
dimension, by the plan that transformers has for the model. Embedding, norms and lm_head stay whole on each.

Weights are DTensors, so that FSDP2 shards and checkpoints them as such, but a layer computes on its rank's part
with two collectives of its own. torch's own styles would make DTensors of the activations too, whose backward
AOTAutograd (torch 2.13) cannot trace with symbolic sizes.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from cftdiag.findings import covers
from cftdiag.recipe.blocks import Blocks
from cftdiag.torch_private.world import all_reduce, wait_tensor

#: Name of the mesh dimension.
TENSOR = "tensor"


def split_blocks(model: nn.Module, blocks: Blocks, mesh: DeviceMesh) -> None:
    """Split the weights of each block over ``mesh`` (one dimension), in place, before anything else wraps it.

    Raises ``ValueError`` for a model without a plan, with one that asks for more than dense layers, and for
    heads that do not divide.
    """
    kinds = _plan(model)
    _require_heads(model, mesh.size())
    found = 0
    for name, block in blocks:
        for inner, module in block.named_modules():
            word = next((w for glob, w in kinds.items() if covers(glob, f"{name}.{inner}")), None)
            if word is not None:
                _split(f"{name}.{inner}", module, word, mesh)
                found += 1
    if not found:
        raise ValueError(f"{type(model).__name__}: its tensor-parallel plan names nothing in its blocks")


class ColumnLinear(nn.Linear):
    """This rank's part of the outputs, of an input that all ranks have."""

    tensor_group: str

    def forward(self, x: Tensor) -> Tensor:
        bias: Any = self.bias
        weight: Any = self.weight
        return F.linear(
            _same(x, self.tensor_group), weight.to_local(), None if bias is None else bias.to_local()
        )


class RowLinear(nn.Linear):
    """All outputs, of this rank's part of the inputs."""

    tensor_group: str

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        out: Tensor = _Sum.apply(F.linear(x, weight.to_local()), self.tensor_group)
        return out if self.bias is None else out + self.bias


class _Sum(Function):
    """The sum over the ranks; its gradient is the same on all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


class _Same(Function):
    """What all ranks have and each uses for its part; the gradient is the sum of the parts'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _reduced(grad, ctx.group), None


def _same(x: Tensor, group: str) -> Tensor:
    out: Tensor = _Same.apply(x, group)
    return out


def _reduced(x: Tensor, group: str) -> Tensor:
    out: Tensor = wait_tensor(all_reduce(x.contiguous(), "sum", group))
    return out


_NORMS: dict[type[nn.Module], type[nn.Module]] = {}
"""One class for all layers: a class of its own for each would be a compile of its own."""


class _PartOfNorm:
    """A norm of each head as one rank sees it, which has some of the heads: its weight's gradient is a part."""

    def __init__(self, norm: nn.Module) -> None:
        self._norm_of_all = norm

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._norm_of_all, name)
        return _same(value, self._norm_of_all.tensor_group) if name == "weight" else value  # type: ignore[arg-type]


def _norm_of_heads(base: type[nn.Module]) -> type[nn.Module]:
    """``base`` with the forward of a part."""
    if base not in _NORMS:

        def forward(self: nn.Module, x: Tensor) -> Tensor:
            out: Tensor = base.forward(_PartOfNorm(self), x)  # type: ignore[arg-type]
            return out

        members = {"forward": forward, "__module__": base.__module__}
        _NORMS[base] = type(base.__name__, (base,), members)
    return _NORMS[base]


def _split(name: str, module: nn.Module, word: str, mesh: DeviceMesh) -> None:
    made: Any = module  # the classes that it becomes have a group
    made.__class__ = _kind(name, module, word, mesh.size())
    made.tensor_group = mesh.get_group().group_name
    if isinstance(made, (ColumnLinear, RowLinear)):
        sharded = {"weight": 0, "bias": 0} if isinstance(made, ColumnLinear) else {"weight": 1}
        for part, dim in sharded.items():
            whole = getattr(made, part)
            if whole is not None:
                value = distribute_tensor(whole.detach(), mesh, [Shard(dim)])
                setattr(made, part, nn.Parameter(value, requires_grad=whole.requires_grad))


def _plan(model: nn.Module) -> dict[str, str]:
    """Glob of a module's name -> word of transformers' plan, in the model that has a head."""
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    plan: dict[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    if not plan:
        raise ValueError(
            f"transformers has no tensor-parallel plan for {type(model).__name__}; leave out --tensor-parallel"
        )
    return {f"{prefix}.{glob}" if prefix else glob: word for glob, word in plan.items()}


def _require_heads(model: nn.Module, ranks: int) -> None:
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(text, name, None)
        if count is not None and count % ranks:
            raise ValueError(
                f"--tensor-parallel {ranks} does not divide {name} {count} of {type(model).__name__}; give a divisor"
            )


def _kind(name: str, module: nn.Module, word: str, ranks: int) -> type[nn.Module]:
    """The class that a module becomes."""
    sizes = {"colwise": ("out_features", ColumnLinear), "rowwise": ("in_features", RowLinear)}
    if type(module) is nn.Linear and word in sizes:
        attribute, kind = sizes[word]
        if getattr(module, attribute) % ranks == 0:
            return kind
        shape = " x ".join(map(str, module.weight.shape))
        raise ValueError(
            f"--tensor-parallel {ranks} does not divide the {shape} weight of {name}; give a divisor"
        )
    if word in sizes:
        raise ValueError(
            f"--tensor-parallel splits plain Linears, and {name} is a {type(module).__name__}, of a method or a library; leave out "
            "one of the two"
        )
    weight = getattr(module, "weight", None)
    if word == "replicated_with_grad_allreduce" and weight is not None and weight.dim() == 1:
        return _norm_of_heads(type(module))
    raise ValueError(
        f"--tensor-parallel splits dense layers; the plan of {name} asks for {word}, which is not there"
    )
