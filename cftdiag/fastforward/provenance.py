"""Where a tensor's values come from.

``REAL``     computed from real data only: token ids, positions, masks, buffers.
``ASSUMED``  concrete memory, but some ancestor was a stated plausible value (balanced routing, for example).
``SKIPPED``  memory that nobody wrote: weights, activations, gradients. Only its metadata means anything.

The level is an attribute of the storage, so views share it and it lives exactly as long as the memory.
Anything unmarked is ``REAL``; tensors that exist only while tracing (fake, functional, meta) are therefore
never touched.
"""

from __future__ import annotations

from typing import Any

import torch

REAL, ASSUMED, SKIPPED = 0, 1, 2
_ATTRIBUTE = "_cftdiag_provenance"


def status(tensor: torch.Tensor) -> int:
    """Level of the tensor's storage: ``REAL``, ``ASSUMED`` or ``SKIPPED``."""
    return getattr(tensor.untyped_storage(), _ATTRIBUTE, REAL)


def mark(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """Set the level of the tensor's storage; returns the tensor."""
    setattr(tensor.untyped_storage(), _ATTRIBUTE, level)
    return tensor


def raise_to(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """Set the level of the tensor's storage unless it is higher already; returns the tensor."""
    return mark(tensor, max(level, status(tensor)))


def mark_weights(module: Any) -> Any:
    """Declare the values of all parameters unknown; buffers keep their real values. Returns the module.

    A sharded parameter (DTensor) is marked through its local shard.
    """
    for parameter in module.parameters():
        mark(getattr(parameter, "_local_tensor", parameter), SKIPPED)
    return module


def is_float(tensor: torch.Tensor) -> bool:
    """True for floating and complex dtypes: the values that never steer Python unless they are read."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex
