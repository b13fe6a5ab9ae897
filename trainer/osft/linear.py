"""A Linear split along its singular directions: the high ones frozen, the low ones trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTORS = ("U_high", "S_high", "V_high", "U_low", "S_low", "V_low")


class OSFTLinear(nn.Module):
    """``y = ((x V_high^T) * S_high) U_high^T + ((x V_low^T) * S_low) U_low^T + b``.

    For a weight of shape N x M (out x in) and ``high`` of its R = min(N, M) directions: ``U_high`` N x high,
    ``S_high`` high, ``V_high`` high x M, and the same for the remaining ``low`` directions. The high factors
    need no gradient. Forward is tensor math only, so that Dynamo captures it whole and all targets of one
    shape share one graph.

    Method: "Sculpting Subspaces" (arXiv 2504.07097).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        high: int,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        low = min(in_features, out_features) - high
        if high < 1 or low < 1:
            raise ValueError(
                f"a target of {out_features} x {in_features} cannot be split into {high} frozen and {low} trained directions"
            )
        for name, rank, trained in (("high", high, False), ("low", low, True)):
            for factor, shape in (("U", (out_features, rank)), ("S", (rank,)), ("V", (rank, in_features))):
                value = torch.empty(shape, dtype=dtype, device=device)
                self.register_parameter(f"{factor}_{name}", nn.Parameter(value, requires_grad=trained))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device)) if bias else None

    @property
    def weight(self) -> Tensor:
        """The dense weight, for code that reads it instead of calling the module (fused kernels of Mamba)."""
        high = (self.U_high * self.S_high) @ self.V_high
        return high + (self.U_low * self.S_low) @ self.V_low

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.V_low) * self.S_low, self.U_low, self.bias)
        return F.linear(F.linear(x, self.V_high) * self.S_high, self.U_high) + low


def decompose(weight: Tensor, high: int, *, upcast: torch.dtype) -> dict[str, Tensor]:
    """Thin SVD of an out x in weight (or of a stack of them) in ``upcast``, as the six factors in the weight's
    dtype; ``high`` directions go to the high ones.
    """
    u, s, v = torch.linalg.svd(weight.to(upcast), full_matrices=False)
    parts = {
        "U_high": u[..., :high],
        "S_high": s[..., :high],
        "V_high": v[..., :high, :],
        "U_low": u[..., high:],
        "S_low": s[..., high:],
        "V_low": v[..., high:, :],
    }
    return {name: part.to(weight.dtype).contiguous() for name, part in parts.items()}


def compose(factors: dict[str, Tensor], *, upcast: torch.dtype = torch.float32) -> Tensor:
    """The out x in weight (or the stack of them) that the six factors stand for, in ``upcast``."""
    f = {name: tensor.to(upcast) for name, tensor in factors.items() if name in FACTORS}
    high = (f["U_high"] * f["S_high"].unsqueeze(-2)) @ f["V_high"]
    return high + (f["U_low"] * f["S_low"].unsqueeze(-2)) @ f["V_low"]
