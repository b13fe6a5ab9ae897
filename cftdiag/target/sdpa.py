"""Which attention kernel torch would choose on a CUDA device, by the rules of ``sdp_utils.cpp`` (torch 2.11
and later), for dense inputs.

A build without CUDA decomposes attention to plain matrix products, and a CUDA build without a device cannot
ask the device for its capability, so the choice is made here from the table. Order on compute capability 9
and 10: cuDNN, flash, efficient, math; elsewhere flash, efficient, math. Sizes are compared as torch compares
them, so that the guards of the choice are there too. Nested tensors and the FA3/FP8 switches are left out.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from cftdiag.target.devices import Device
from cftdiag.torch_private import operators

_HALF = (torch.float16, torch.bfloat16)
#: torch tries cuDNN first from this version on (9.15.1).
CUDNN_PREFERRED_FROM = 91501
#: Version to assume where no cuDNN is installed, as ``torch.backends.cudnn.version()`` writes it.
CUDNN_VARIABLE = "CFTDIAG_TARGET_CUDNN"
#: cuDNN attention takes head dimensions above 128 only with a version and a frontend that are not known
#: offline.
_CUDNN_HEAD_DIM = 128

#: (kernel, why not a faster one) -> times, in this process.
CHOICES: collections.Counter[tuple[str, str]] = collections.Counter()


def cudnn_version() -> int:
    """The version asked for, else the installed one, else 0: unknown.

    With an unknown version cuDNN is not assumed: flash attention's guards are those of cuDNN's and more, so
    nothing is missed.
    """
    asked = os.environ.get(CUDNN_VARIABLE, "")
    if asked.isdigit():
        return int(asked)
    return (torch.backends.cudnn.version() if torch.version.cuda else None) or 0


def order(spec: Device) -> tuple[str, ...]:
    """Kernels in the order in which torch tries them on this device; honours torch's own
    ``TORCH_CUDNN_SDPA_DEPRIORITIZED``.
    """
    preferred = (
        os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
        and cudnn_version() >= CUDNN_PREFERRED_FROM
        and spec.major in (9, 10)
    )
    return ("cudnn", "flash", "efficient", "math") if preferred else ("flash", "efficient", "math")


def _common(q: Any, k: Any, v: Any, enable_gqa: bool) -> str | None:
    if not q.dim() == k.dim() == v.dim() == 4:
        return "inputs are not 4-dimensional"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return "batch sizes differ"
    heads = (
        q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1]
        if enable_gqa
        else q.shape[1] == k.shape[1] == v.shape[1]
    )
    if not heads:
        return "numbers of heads differ"
    if not (q.stride(-1) == 1 and k.stride(-1) == 1 and v.stride(-1) == 1):
        return "a last dimension is not contiguous"
    return None


def why_not_cudnn(
    q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, enable_gqa: bool
) -> str | None:
    """Reason why cuDNN's kernel does not take this call, None when it does."""
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "disabled by torch.backends.cuda.enable_cudnn_sdp"
    if q.dtype not in _HALF:
        return f"dtype {str(q.dtype).removeprefix('torch.')}"
    if (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return "deterministic algorithms are asked for"
    if mask is not None and mask.requires_grad:
        return "the mask requires grad"
    if dropout * 16 != math.floor(dropout * 16):
        return "dropout is not a multiple of 1/16"
    common = _common(q, k, v, enable_gqa)
    if common:
        return common
    if not (q.shape[0] <= 65535 and q.shape[1] <= 65535):
        return "batch size or number of heads above 65535"
    if q.shape[-1] > _CUDNN_HEAD_DIM or v.shape[-1] > _CUDNN_HEAD_DIM:
        return f"head dimension above {_CUDNN_HEAD_DIM}"
    if q.shape[-1] % 8 or v.shape[-1] % 8:
        return "head dimension is not a multiple of 8"
    return None if k.shape[2] != 1 else "one key only"


def why_not_flash(
    q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, enable_gqa: bool
) -> str | None:
    """Reason why the flash kernel does not take this call, None when it does."""
    if not torch.backends.cuda.flash_sdp_enabled():
        return "disabled by torch.backends.cuda.enable_flash_sdp"
    if mask is not None:
        return "a mask is given"
    if q.dim() == 4 and (not q.shape[-1] == k.shape[-1] == v.shape[-1] or q.shape[-1] > 256):
        return "head dimensions differ or exceed 256"
    if causal and q.shape[-2] != k.shape[-2]:
        return "causal with query and key lengths that differ"
    if q.dtype not in _HALF:
        return f"dtype {str(q.dtype).removeprefix('torch.')}"
    return _common(q, k, v, enable_gqa)


def why_not_efficient(
    q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, enable_gqa: bool
) -> str | None:
    """Reason why the memory-efficient kernel does not take this call, None when it does."""
    if not torch.backends.cuda.mem_efficient_sdp_enabled():
        return "disabled by torch.backends.cuda.enable_mem_efficient_sdp"
    if q.dtype not in (*_HALF, torch.float32):
        return f"dtype {str(q.dtype).removeprefix('torch.')}"
    alignment = 8 if q.dtype in _HALF else 4
    if q.dim() == 4 and (q.shape[-1] != k.shape[-1] or q.shape[-1] % alignment or v.shape[-1] % alignment):
        return f"head dimension is not a multiple of {alignment}"
    return _common(q, k, v, enable_gqa)


_WHY_NOT: dict[str, Callable[..., str | None]] = {
    "cudnn": why_not_cudnn,
    "flash": why_not_flash,
    "efficient": why_not_efficient,
}


def choose(
    spec: Device,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    enable_gqa: bool = False,
) -> tuple[str, str]:
    """(kernel, reasons against the kernels tried before it)."""
    against: list[str] = []
    for kernel in order(spec):
        reason = _WHY_NOT[kernel](q, k, v, mask, dropout, causal, enable_gqa) if kernel in _WHY_NOT else None
        if reason is None:
            return kernel, "; ".join(against)
        against.append(f"not {kernel}: {reason}")
    raise AssertionError("math takes everything")


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _aligned(mask: Any, q: Any, k: Any) -> Any:
    """The mask as the efficient kernel wants it: rows padded to 16 bytes and cut back, then expanded."""
    if mask.stride(-1) != 1 or any(mask.stride(i) % 8 for i in range(mask.dim() - 1)):
        length = mask.shape[-1]
        mask = F.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _run(
    kernel: str,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if kernel == "cudnn":
        bias = _additive(mask, q.dtype)
        return operators.scaled_dot_product_cudnn_attention(
            q, k, v, bias, grad, dropout, causal, False, scale=scale
        )[0]
    if kernel == "flash":
        width = q.shape[-1]
        scale = scale if scale is not None else width**-0.5
        if width % 8:
            q, k, v = (F.pad(t, (0, 8 - width % 8)) for t in (q, k, v))
        out = operators.scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    mask = _additive(mask, q.dtype)
    if kernel == "efficient":
        if enable_gqa and q.shape[1] != k.shape[1]:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        bias = None if mask is None else _aligned(mask, q, k)
        return operators.scaled_dot_product_efficient_attention(
            q, k, v, bias, grad, dropout, causal, scale=scale
        )[0]
    return operators.scaled_dot_product_attention_math(
        q, k, v, mask, dropout, causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def attention_on(
    spec: Device,
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """``scaled_dot_product_attention`` by the kernel of this device."""
    kernel, reason = choose(spec, q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
    CHOICES[kernel, reason] += 1
    return _run(kernel, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)


@contextlib.contextmanager
def as_on(spec: Device) -> Iterator[None]:
    """Attention on CUDA tensors goes to the kernel of this device inside the block."""

    def attention(*args: Any, **kwargs: Any) -> Any:
        return attention_on(spec, *args, **kwargs)

    library = torch.library.Library("aten", "IMPL")
    try:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl("scaled_dot_product_attention", attention, key)
        yield
    finally:
        library._destroy()


def assumed() -> list[str]:
    """The choices made so far in this process, one English line each."""
    lines = []
    for (kernel, reason), _ in sorted(CHOICES.items()):
        lines.append(f"attention is lowered as torch's {kernel} kernel" + (f" ({reason})" if reason else ""))
    if any(kernel == "flash" for kernel, _ in CHOICES) and not cudnn_version():
        lines.append(
            "undetermined: on compute capability 9 and 10 a torch with cuDNN 9.15.1 or later (its CUDA 13 wheels) prefers cuDNN's kernel, whose "
            f"guards are fewer; set {CUDNN_VARIABLE}={CUDNN_PREFERRED_FROM} to check that"
        )
    return lines


@contextlib.contextmanager
def eager_as_on(spec: Device) -> Iterator[None]:
    """Eager attention by the kernel that torch would choose on the device."""
    plain = F.scaled_dot_product_attention

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        return attention_on(spec, query, key, value, *args, **kwargs)

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain
