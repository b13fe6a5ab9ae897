"""Declares ``Tensor.tolist()`` and ``Tensor.numpy()`` on memory that nobody computed.

Both bypass the dispatcher, so they are replaced on ``torch.Tensor`` while a `SkipMode` is active. Dynamo
would trace the replacement in place of the method and see another program, so the originals are put back for
as long as something is being compiled.
"""

from __future__ import annotations

from typing import Any

import torch

from cftdiag.fastforward import assumed_values
from cftdiag.fastforward.assumptions import note
from cftdiag.fastforward.provenance import REAL, SKIPPED, is_float, status
from cftdiag.torch_private import callbacks

_tolist, _numpy = torch.Tensor.tolist, torch.Tensor.numpy
_active = 0


def _known(tensor: torch.Tensor, name: str) -> bool:
    """False when the tensor's values were never computed; anything but a real value is noted."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return True
    level = status(tensor)
    if level > REAL:
        note("read", name)
    return level < SKIPPED


def _plausible_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(
        tensor.shape, assumed_values.scalar(tensor.dtype) if is_float(tensor) else 0, dtype=tensor.dtype
    )


def _declared_tolist(self: torch.Tensor) -> Any:
    return _tolist(self if _known(self, "Tensor.tolist") else _plausible_like(self))


def _declared_numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    if _known(self, "Tensor.numpy") or (self.requires_grad and not force):
        return _numpy(self, force=force)
    return _numpy(_plausible_like(self))


def _install(*_: Any) -> None:
    torch.Tensor.tolist, torch.Tensor.numpy = _declared_tolist, _declared_numpy  # type: ignore[method-assign]


def _remove(*_: Any) -> None:
    for name in ("tolist", "numpy"):
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)  # both are inherited, so this uncovers the original


def declare() -> None:
    """Start declaring; calls nest."""
    global _active
    _active += 1
    callbacks.register(_remove, _install)  # each time: `torch._dynamo.reset` drops all callbacks
    _install()


def restore() -> None:
    """Undo one `declare`."""
    global _active
    _active -= 1
    if _active:
        return
    callbacks.unregister(_remove, _install)
    _remove()
