"""How much of the trained factors lies in the frozen space: 0 for exact orthogonality, 1 for none of it
outside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.osft.experts import OSFTExperts
from trainer.osft.frozen import Frozen, local
from trainer.osft.linear import OSFTLinear


@torch.no_grad()
def leak(frozen: Frozen) -> Tensor:
    """The largest over layers of ||U_high^T U_low||_F / ||U_low||_F and ||V_low V_high^T||_F / ||V_low||_F, a
    scalar on the device. Collective.

    A Frobenius norm over all directions, because a leak that is spread over many directions turns no single
    column by a visible angle.
    """
    layers: list[OSFTLinear | OSFTExperts] = [*frozen.layers, *frozen.experts]
    index = {id(layer): i for i, layer in enumerate(layers)}
    first = local(layers[0].U_high)
    inside = torch.zeros(
        2, len(index), dtype=torch.promote_types(first.dtype, torch.float32), device=first.device
    )
    # Coefficients of U are summed over the ranks already, those of V are this rank's.
    total = torch.zeros_like(inside)
    for layer, _, coefficients in frozen.coefficients(lambda layer: layer.U_low):
        inside[0, index[id(layer)]] += coefficients.square().sum()
    for layer, rows in frozen.directions(lambda layer: layer.V_low):
        inside[1, index[id(layer)]] += (local(layer.V_low).to(rows.dtype) @ rows.T).square().sum()
    # Experts are whole on their rank: both of their sums are this rank's, and are summed apart.
    own = torch.zeros_like(inside)
    for experts in frozen.experts:
        for some in frozen.by_expert(experts):
            u, v = local(experts.U_low)[some].to(total.dtype), local(experts.V_low)[some].to(total.dtype)
            u_high = local(experts.U_high)[some].to(total.dtype)
            v_high = local(experts.V_high)[some].to(total.dtype)
            own[0, index[id(experts)]] += (u_high.mT @ u).square().sum()
            own[1, index[id(experts)]] += (v @ v_high.mT).square().sum()
    for each in layers:
        for i, factor in enumerate((each.U_low, each.V_low)):
            total[i, index[id(each)]] = local(factor).to(total.dtype).square().sum()
    frozen.sum(inside[1])
    inside += frozen.sum(own)
    frozen.sum(total)
    return (inside / total.clamp_min(torch.finfo(total.dtype).tiny)).max().sqrt()


def update_leak(before: Tensor, after: Tensor, u_high: Tensor, v_high: Tensor) -> float:
    """The same for a realised update dW = after - before of a dense out x in weight: the larger of its two
    shares inside the frozen space.
    """
    update = after - before
    norm = update.norm()
    return max((u_high.T @ update).norm() / norm, (update @ v_high.T).norm() / norm).item()
