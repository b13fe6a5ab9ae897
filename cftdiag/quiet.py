"""Lines that libraries write and that no user of ours can do anything about."""

from __future__ import annotations

import logging

_LOGGERS = (
    # "Failed to load _C_cutlass_90a": kernels for GPUs, beside a build of torch for CPUs. transformers imports
    # torchao wherever it is installed.
    "torchao",
    # That torchao registers an enum in a way that torch no longer needs.
    "torch.utils._pytree",
    # That the norm of gradients on two mesh dimensions is summed over one after the other: once a step, and the
    # trainer gives all ranks one result.
    "torch.distributed.tensor._redistribute",
)


def quiet_imports() -> None:
    """Let only errors of these loggers be heard in this process. For programs, before they import; not for a
    library that others import.
    """
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
