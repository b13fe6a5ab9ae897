"""Keep the trained factors orthogonal to the frozen ones: gradients before clipping, parameters after the
step.

    X_U -= U_high (U_high^T X_U)        X_V -= (X_V V_high^T) V_high

for the gradients or the values X of U_low and V_low; S_low is free. Parameters too, because Adam scales
element by element and so turns even a projected gradient back into the frozen space.
"""

from __future__ import annotations

import torch

from trainer.osft.frozen import Frozen, Pick, compute_dtype, local


def project_gradients(frozen: Frozen) -> None:
    """Project the gradients of all layers in place; layers without a gradient are left out. Collective."""
    _project(frozen, lambda layer: layer.U_low.grad, lambda layer: layer.V_low.grad)


def project_parameters(frozen: Frozen) -> None:
    """Project U_low and V_low of all layers in place. Collective."""
    _project(frozen, lambda layer: layer.U_low, lambda layer: layer.V_low)


@torch.no_grad()
def _project(frozen: Frozen, pick_u: Pick, pick_v: Pick) -> None:
    for layer, columns, coefficients in frozen.coefficients(pick_u):
        x = pick_u(layer)
        assert x is not None
        part = local(x)[:, columns]
        part.sub_((local(layer.U_high).to(coefficients.dtype) @ coefficients).to(part.dtype))
    for layer, rows in frozen.directions(pick_v):
        x = pick_v(layer)
        assert x is not None
        part = local(x)
        part.sub_(((part.to(rows.dtype) @ rows.T) @ rows).to(part.dtype))
    for experts in frozen.experts:
        u, v = pick_u(experts), pick_v(experts)
        for some in frozen.by_expert(experts):
            if u is not None:
                high, x = local(experts.U_high)[some], local(u)[some]
                wide = high.to(compute_dtype(high))
                x.sub_((wide @ (wide.mT @ x.to(wide.dtype))).to(x.dtype))
            if v is not None:
                rows, x = local(experts.V_high)[some], local(v)[some]
                wide = rows.to(compute_dtype(rows))
                x.sub_(((x.to(wide.dtype) @ wide.mT) @ wide).to(x.dtype))
