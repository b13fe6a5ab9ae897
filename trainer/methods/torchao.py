"""The door to torchao, which the methods of quantised weights need."""

from __future__ import annotations

import functools
from typing import Any

from cftdiag.quiet import quiet_imports


def require(method: str) -> None:
    """Raise ``ValueError`` where torchao is not installed or cannot be used with this torch."""
    try:
        quantization()
    except ImportError as error:
        raise ValueError(
            f"method {method} needs torchao, which cannot be imported here ({error}); pip install 'cftdiag[quantize]'"
        ) from error


@functools.cache
def quantization() -> Any:
    """The package ``torchao.quantization``. Raises ``ImportError``."""
    quiet_imports()
    import torchao.quantization
    import torchao.quantization.qat

    if not hasattr(torchao.quantization, "NF4Tensor"):
        raise ImportError("this torchao has no NF4Tensor in torchao.quantization; 0.18 has it")
    return torchao.quantization
