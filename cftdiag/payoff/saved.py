"""What forward keeps for backward: bytes by region, each storage once, parameters and buffers left out."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from cftdiag.torch_private.tracing import TorchDispatchMode, tree_leaves
from cftdiag.torch_private.wrappers import CHECKPOINTED

#: Of no region.
REST = ""


class Saved:
    """Counts in one forward. What a region gets as input and keeps is booked on it."""

    def __init__(
        self,
        model: nn.Module,
        regions: Mapping[str, nn.Module],
        checkpoint_keeps: Callable[[Any], bool] | None = None,
    ) -> None:
        """``checkpoint_keeps`` tells of an operator whether selective checkpointing keeps what it returns, for
        regions that run eagerly.
        """
        self._regions = regions
        self._checkpoint_keeps = checkpoint_keeps
        self._own = {_storage(t) for t in (*model.parameters(), *model.buffers())}
        self._seen: set[int] = set()
        self._kept: list[torch.Tensor] = []
        self._open: list[str] = []
        self.bytes: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def counting(self) -> Iterator[Saved]:
        """Active around a forward and its backward."""
        hooks = []
        for name, module in self._regions.items():
            hooks.append(module.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True))
            hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(
                    torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
                )
                if self._checkpoint_keeps is not None:
                    stack.enter_context(_Outputs(self._checkpoint_keeps, self._kept_by_checkpoint))
                yield self
        finally:
            self._kept.clear()
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str) -> Any:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._open.append(name)
            if hasattr(module, CHECKPOINTED):
                # what a checkpoint keeps to run again passes no hook of autograd
                for value in tree_leaves((args, kwargs)):
                    if isinstance(value, torch.Tensor):
                        self._keep(value)

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._open:
            self._open.pop()

    def _kept_by_checkpoint(self, output: Any) -> None:
        # Selective checkpointing puts these aside by itself; autograd's hooks see nothing of it. In a backward,
        # where a block is run again, no region is open.
        if self._open and hasattr(self._regions[self._open[-1]], CHECKPOINTED):
            for value in tree_leaves(output):
                if isinstance(value, torch.Tensor):
                    self._keep(value)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._keep(tensor)
        return tensor

    def _keep(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        if storage in self._own or storage in self._seen:
            return
        self._seen.add(storage)
        self._kept.append(tensor)  # alive, so that no other tensor gets its storage's address
        self.bytes[self._open[-1] if self._open else REST] += tensor.untyped_storage().nbytes()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Outputs(TorchDispatchMode):
    """Hands on what some operators return."""

    supports_higher_order_operators = True

    def __init__(self, wanted: Callable[[Any], bool], found: Callable[[Any], None]) -> None:
        super().__init__()
        self._wanted, self._found = wanted, found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._wanted(func):
            self._found(out)
        return out
