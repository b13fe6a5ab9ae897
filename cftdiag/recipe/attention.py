"""torch's own variable-length attention as an attention implementation of transformers, for packed rows on
CUDA without another package.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn


def needs_boundaries(attn: str) -> bool:
    """True for kernels that take document boundaries (``cu_seq_lens``) instead of a mask."""
    return attn == "varlen" or attn.startswith("flash")


def register_varlen() -> None:
    """Make ``attn_implementation="varlen"`` known. Raises ``ValueError`` where this torch has no
    ``torch.nn.attention.varlen``.
    """
    from transformers import AttentionInterface

    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        raise ValueError(
            f"attention varlen needs torch.nn.attention.varlen, which torch {torch.__version__} lacks; use sdpa"
        )
    AttentionInterface.register("varlen", varlen_attention)


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    max_length_q: int,
    max_length_k: int,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each document of one packed row.

    query 1 x heads x S x D, key and value 1 x kv heads x S x D; the result is 1 x S x heads x D. No mask is
    ever built.
    """
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    left = -1 if sliding_window is None else sliding_window - 1
    out = varlen_attn(
        q,
        k,
        v,
        cu_seq_lens_q,
        cu_seq_lens_k,
        max_length_q,
        max_length_k,
        scale=scaling,
        window_size=(left, 0),
    )
    assert isinstance(out, Tensor)
    return out[None], None
