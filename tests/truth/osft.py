"""The OSFT form of a model: decomposed for real, or only in shape for a model without weights."""

from __future__ import annotations

import torch

from cftdiag.fastforward import mark_weights
from trainer.osft.surgery import plan, split, split_and_decompose


def prepare(model: torch.nn.Module, *, real: bool) -> None:
    """Replace the targets of ``model`` in place, half of the directions trained."""
    targets = plan(model, 0.5)
    if real:
        split_and_decompose(model, targets)
        return
    split(model, targets)
    mark_weights(model)
