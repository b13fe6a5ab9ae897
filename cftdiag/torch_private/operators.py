"""Attention operators of ATen that have no public name: the kernels that torch chooses between."""

from __future__ import annotations

from typing import Any

from cftdiag.torch_private.names import Name, by_alias, resolve

_LOST = "attention cannot be lowered as the device would run it (--target)"

NAMES = tuple(
    Name(f"torch:ops.aten._scaled_dot_product_{kernel}", "codegen for a GPU", _LOST)
    for kernel in ("cudnn_attention", "efficient_attention", "flash_attention", "attention_math")
)
_NAMES = by_alias(NAMES)


def __getattr__(name: str) -> Any:
    return resolve(_NAMES, name, __name__)
