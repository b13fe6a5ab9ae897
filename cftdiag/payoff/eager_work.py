"""What a training step launches when nothing is compiled: every operator that reaches a device, with its bytes.

An operator of ATen is one launch; views launch nothing. Each operator is booked on the region (block, loss) in
whose forward it ran, in backward on the one whose forward made the autograd node.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from cftdiag.target.work import Launch, Work
from cftdiag.torch_private import autograd_nodes
from cftdiag.torch_private.tracing import OpOverload, TorchDispatchMode, tree_leaves

#: Of no region.
REST = ""
_HALF = (torch.float16, torch.bfloat16)
#: Operators that allocate or look and launch nothing.
_FREE = {
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided", "aten.detach", "aten.alias",
    "aten.lift_fresh", "aten.set_", "aten.resize_", "aten.is_same_size", "aten.item", "aten._local_scalar_dense", "aten.is_pinned",
    "aten._version", "aten.sym_size", "aten.equal", "aten._unsafe_view", "aten._reshape_alias",
}  # fmt: skip


class EagerWork(TorchDispatchMode):
    """Counts while it is active. Enter it inside of a fast-forwarding mode, so that it sees operators first."""

    supports_higher_order_operators = True

    def __init__(self, regions: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._regions = regions
        self._launches: collections.defaultdict[str, list[Launch]] = collections.defaultdict(list)
        self._open: list[str] = []
        self._nodes = autograd_nodes.Owners()

    def work(self, region: str) -> Work:
        """What was launched for a region; ``REST`` for what belongs to none."""
        return Work.of(self._launches[region])

    @contextlib.contextmanager
    def counting(self) -> Iterator[EagerWork]:
        """Active, with the regions' forwards told apart."""
        hooks = []
        for name, module in self._regions.items():
            hooks.append(module.register_forward_pre_hook(self._enter(name), prepend=True))
            hooks.append(module.register_forward_hook(self._leave(name), always_call=True))
        try:
            with self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self._open.append(name)
            self._nodes.begin(name)

        return enter

    def _leave(self, name: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self._open and self._open[-1] == name:
                self._open.pop()
                self._nodes.end(name)

        return leave

    def _region(self) -> str:
        if self._open:
            return self._open[-1]
        if torch.is_grad_enabled():
            return REST  # a forward, or one that a checkpoint runs again in the middle of a backward
        return self._nodes.current() or REST

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if isinstance(func, OpOverload):
            launch = launch_of(func, args, kwargs, out)
            if launch is not None:
                self._launches[self._region()].append(launch)
        return out


def launch_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Launch | None:
    """What the operator launches; None where it launches nothing."""
    name = str(func.overloadpacket)
    if func.is_view or name in _FREE or func.namespace == "c10d":
        return None
    inputs = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
    if not outputs or all(_same(o, inputs) for o in outputs) and not func._schema.is_mutable:
        return None  # a view in all but name: `_unsafe_view`, a reshape that had nothing to copy
    formula = flop_registry.get(func.overloadpacket)
    flops = 0
    if formula is not None:
        flops = int(formula(*args, **kwargs, out_val=out))
    moved = sum(map(_bytes, _distinct(inputs))) + sum(
        _bytes(o) for o in _distinct(outputs) if not _same(o, inputs)
    )
    if func._schema.is_mutable:
        moved += sum(_bytes(o) for o in _distinct(outputs) if _same(o, inputs))
    floats = [t for t in (*outputs, *inputs) if t.is_floating_point()]
    half = bool(floats) and floats[0].dtype in _HALF
    return Launch(name=name, bytes=moved, flops=flops, product=formula is not None, half=half)


def _same(output: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    return any(output is t or _storage(output) == _storage(t) for t in inputs)


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(t): t for t in tensors}.values())


def _bytes(tensor: torch.Tensor) -> int:
    """Elements that are there: a dimension that was expanded is read once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or size == 0 else 1
    return count * tensor.element_size()
