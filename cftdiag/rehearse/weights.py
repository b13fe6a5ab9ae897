"""The trained parameters: marked as memory that nobody computed, and counted."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cftdiag.fastforward import SKIPPED, mark
from cftdiag.rehearse.settings import Outcome, Rehearsal


class Weights:
    """Parameters that an optimizer of the script was given."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def add(self, parameters: Iterable[Any]) -> None:
        """Take these parameters for trained ones."""
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor):
                mark(getattr(parameter, "_local_tensor", parameter), SKIPPED)

    def described(self, compiled: list[torch.nn.Module], models: list[torch.nn.Module]) -> Outcome:
        """Size and class of the largest of ``models`` that holds what was compiled."""
        largest = max([*models, *compiled], key=_size, default=None)
        if largest is None:
            return Outcome()
        from cftdiag.capture.blocks import class_name, unwrap

        own = {id(p) for p in largest.parameters()}
        parts = {id(p): p.numel() for module in compiled for p in module.parameters() if id(p) in own}
        return Outcome(
            model_class=class_name(unwrap(largest)),
            parameters=_size(largest),
            compiled_parameters=sum(parts.values()),
            members=tuple(_members(largest)),
        )


def _members(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, class) of the members of the outermost ModuleLists."""
    from cftdiag.capture.blocks import class_name, strip, unwrap

    for name, child in module.named_children():
        fqn = f"{prefix}{name}"
        if isinstance(child, torch.nn.ModuleList):
            yield from ((strip(f"{fqn}.{i}"), class_name(unwrap(member))) for i, member in enumerate(child))
        else:
            yield from _members(child, f"{fqn}.")


def _size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def install(settings: Rehearsal) -> Weights:
    """Mark parameters as they are handed to an optimizer."""
    weights = Weights()
    real = torch.optim.Optimizer.add_param_group

    @functools.wraps(real)
    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        real(self, param_group)
        if not settings.weights and not settings.plain:
            weights.add(self.param_groups[-1]["params"])

    torch.optim.Optimizer.add_param_group = add_param_group  # type: ignore[method-assign]
    return weights
