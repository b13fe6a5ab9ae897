"""The weights of experts, split along the singular directions of each: the counterpart of OSFTLinear for one
parameter of experts x rows x columns.

The expert's own code multiplies by the parameter, in ways that differ between models and kernels. It is
therefore left as it is, and finds under the parameter's name the product of the factors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.osft.linear import compose

SUFFIX = "_osft"
"""The factors of parameter ``x`` are the submodule ``x_osft`` beside it."""


class OSFTExperts(nn.Module):
    """The six factors of every expert's weight, N x M each, with ``high`` of R = min(N, M) directions frozen:
    ``U_high`` E x N x high, ``S_high`` E x high, ``V_high`` E x high x M, and the same for the low ones.
    """

    def __init__(
        self,
        experts: int,
        rows: int,
        columns: int,
        *,
        high: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        low = min(rows, columns) - high
        if high < 1 or low < 1:
            raise ValueError(
                f"experts of {rows} x {columns} cannot be split into {high} frozen and {low} trained directions"
            )
        for name, rank, trained in (("high", high, False), ("low", low, True)):
            for factor, shape in (("U", (rows, rank)), ("S", (rank,)), ("V", (rank, columns))):
                value = torch.empty((experts, *shape), dtype=dtype, device=device)
                self.register_parameter(f"{factor}_{name}", nn.Parameter(value, requires_grad=trained))

    def forward(self) -> Tensor:
        """The weights, E x N x M."""
        high = (self.U_high * self.S_high.unsqueeze(-2)) @ self.V_high
        return high + (self.U_low * self.S_low.unsqueeze(-2)) @ self.V_low


def install(owner: nn.Module, name: str, factors: OSFTExperts) -> None:
    """Put ``factors`` in place of the parameter ``name`` of ``owner``, which from then on reads their product."""
    delattr(owner, name)
    owner.add_module(name + SUFFIX, factors)
    owner.__class__ = _reading(type(owner), name)


def uninstall(owner: nn.Module, name: str, *, upcast: torch.dtype) -> None:
    """Put the dense parameter back."""
    factors = owner.get_submodule(name + SUFFIX)
    assert isinstance(factors, OSFTExperts)
    dense = compose(dict(factors.named_parameters()), upcast=upcast).to(factors.U_high.dtype)
    delattr(owner, name + SUFFIX)
    owner.__class__ = type(owner).__mro__[1]
    owner.register_parameter(name, nn.Parameter(dense))


_CLASSES: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}
"""One class for all layers: a class of its own for each would be a compile of its own."""


def _reading(base: type[nn.Module], name: str) -> type[nn.Module]:
    """``base`` with a property ``name`` that is the product of the factors."""

    def read(self: nn.Module) -> Tensor:
        product: Tensor = self._modules[name + SUFFIX]()  # type: ignore[misc]
        return product

    if (base, name) not in _CLASSES:
        members = {name: property(read), "__module__": base.__module__}
        _CLASSES[base, name] = type(base.__name__, (base,), members)
    return _CLASSES[base, name]
