"""Private attributes of tensors, modules and process groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cftdiag.torch_private.names import Name

#: A module's tables of hooks, and the kind of hook in each.
HOOKS = {
    "_forward_hooks": "forward",
    "_forward_pre_hooks": "forward_pre",
    "_backward_hooks": "full_backward",
    "_backward_pre_hooks": "full_backward_pre",
}
#: A module's tables of what is not a plain attribute.
TABLES = ("_parameters", "_modules", "_buffers")

NAMES = (
    Name("torch:Tensor._base", "guards", "frames that hold a view have no forecast"),
    Name("torch:Tensor._is_view", "guards", "frames that hold a view have no forecast"),
    Name("torch:Tensor._version", "guards", "buffers that a step writes are not put back"),
    Name(
        "torch.distributed:ProcessGroup._get_backend",
        "monitor",
        "the time limit of collectives is not known",
        needed=False,
    ),
)


def view_base(tensor: Any) -> Any | None:
    """The tensor that a view looks into, None for one that is no view."""
    return tensor._base if tensor._is_view() else None


def version(tensor: Any) -> int:
    """Number of writes to a tensor so far."""
    return int(tensor._version)


def hooks(module: Any) -> Iterator[tuple[str, int, Any]]:
    """(table, id, hook) of every hook on a module itself."""
    for table in HOOKS:
        for key, hook in getattr(module, table, {}).items():
            yield table, key, hook


def buffers(module: Any) -> dict[str, Any]:
    """The module's own table of buffers, which may be changed."""
    return module._buffers  # type: ignore[no-any-return]


def group_timeout() -> float | None:
    """Seconds after which a collective of the default process group gives up; None without a group or where
    it cannot be read.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    group: Any = dist.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            return float(group._get_backend(torch.device(device)).options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return None
