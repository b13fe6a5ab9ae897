"""Operators that stand in for the flash-attention kernels: same arguments, shapes and gradients, plain math
inside.

They let a block that calls flash attention be traced, and run on a small real model, where the kernels are
not installed. Shapes follow the kernels: q (batch, length, heads, head_dim), k and v (batch, length,
kv_heads, head_dim), or without the batch dimension and with cumulative lengths for the variable-length form;
the log-sum-exp is (batch, heads, length) or (heads, length), float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from cftdiag.recipe.model_config import FLASH_MAX_HEAD_DIM


def _checked(q: torch.Tensor) -> None:
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.shape[-1] > FLASH_MAX_HEAD_DIM:
        raise RuntimeError(
            f"FlashAttention forward only supports head dimension at most {FLASH_MAX_HEAD_DIM}"
        )


def _heads_first(t: torch.Tensor, heads: int) -> torch.Tensor:
    """(..., length, kv_heads, head_dim) -> float32 (..., heads, length, head_dim), each kv head repeated for
    its group of query heads.
    """
    return t.float().repeat_interleave(heads // t.shape[-2], -2).transpose(-2, -3)


def _weights(
    q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool, left: int, right: int, softcap: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores before masking, attention weights and log-sum-exp; the last query is aligned with the last key."""
    scores = _heads_first(q, q.shape[-2]) @ _heads_first(k, q.shape[-2]).transpose(-1, -2) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    row = torch.arange(q.shape[-3], device=q.device)[:, None] + k.shape[-3] - q.shape[-3]
    column = torch.arange(k.shape[-3], device=q.device)
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal or right >= 0:
        hidden |= column > row + (0 if causal else right)
    if left >= 0:
        hidden |= column < row - left
    masked = scores.masked_fill(hidden, float("-inf"))
    return scores, torch.nan_to_num(torch.softmax(masked, -1)), torch.logsumexp(masked, -1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of one batch of sequences in the kernels' layout."""
    _, weights, lse = _weights(q, k, *options)
    return (weights @ _heads_first(v, q.shape[-2])).transpose(-2, -3).to(q.dtype), lse


def _attend_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, ...]:
    """Gradients of `_attend`'s output with respect to q, k and v (the textbook formulas)."""
    heads, (scale, *_, softcap) = q.shape[-2], options
    scores, weights, _ = _weights(q, k, *options)
    upper = _heads_first(grad, heads)
    by_weight = upper @ _heads_first(v, heads).transpose(-1, -2)
    by_score = weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True)) * scale
    if softcap > 0:
        by_score = by_score * (1 - (scores / softcap) ** 2)
    by_key = (by_score.transpose(-1, -2) @ _heads_first(q, heads), weights.transpose(-1, -2) @ upper)

    def ungrouped(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-3, (k.shape[-2], -1)).sum(-3).transpose(-2, -3).to(q.dtype).contiguous()

    by_query = (by_score @ _heads_first(k, heads)).transpose(-2, -3).to(q.dtype).contiguous()
    return by_query, *map(ungrouped, by_key)


@torch.library.custom_op("cftdiag::flash_attention", mutates_args=())
def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of equally long sequences -> (output like q, log-sum-exp)."""
    _checked(q)
    out, lse = _attend(q, k, v, scale, causal, left, right, softcap)
    return out.contiguous(), lse.contiguous()


@flash_attention.register_fake
def _(q, k, v, scale, causal, left, right, softcap):  # type: ignore[no-untyped-def]
    _checked(q)
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(
        (q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32
    )


@torch.library.custom_op("cftdiag::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    scale: float, causal: bool, left: int, right: int, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of `flash_attention` with respect to q, k and v."""
    return _attend_backward(grad, q, k, v, scale, causal, left, right, softcap)  # type: ignore[return-value]


@flash_attention_backward.register_fake
def _(grad, q, k, v, out, lse, scale, causal, left, right, softcap):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))


@torch.library.custom_op("cftdiag::flash_attention_varlen", mutates_args=())
def flash_attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int,
    max_seqlen_k: int, scale: float, causal: bool, left: int, right: int, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of sequences laid end to end -> (output like q, log-sum-exp)."""
    _checked(q)
    parts = [
        _attend(*qkv, scale, causal, left, right, softcap)
        for qkv in _sequences(q, k, v, cu_seqlens_q, cu_seqlens_k)
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], -1)


def _sequences(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends_q: torch.Tensor, ends_k: torch.Tensor
) -> Iterator[Any]:
    for (a, b), (c, d) in zip(
        itertools.pairwise(ends_q.tolist()), itertools.pairwise(ends_k.tolist()), strict=True
    ):
        yield q[a:b], k[c:d], v[c:d]


@flash_attention_varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale, causal, left, right, softcap):  # type: ignore[no-untyped-def]
    _checked(q)
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(
        (q.shape[1], q.shape[0]), dtype=torch.float32
    )


@torch.library.custom_op("cftdiag::flash_attention_varlen_backward", mutates_args=())
def flash_attention_varlen_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    scale: float, causal: bool, left: int, right: int, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of `flash_attention_varlen` with respect to q, k and v."""

    options = (scale, causal, left, right, softcap)
    ends = cu_seqlens_q.tolist()
    grads = [grad[a:b] for a, b in itertools.pairwise(ends)]
    parts = [
        _attend_backward(g, *qkv, *options)
        for g, qkv in zip(grads, _sequences(q, k, v, cu_seqlens_q, cu_seqlens_k), strict=True)
    ]
    return tuple(torch.cat(found) for found in zip(*parts, strict=True))  # type: ignore[return-value]


@flash_attention_varlen_backward.register_fake
def _(grad, q, k, v, out, lse, *rest):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))


def _differentiable(forward: Any, backward: Any, tensors: int) -> None:
    """``tensors``: how many leading arguments are tensors; all of them are saved with both outputs, the rest
    are options.
    """

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:3], *output, *inputs[3:tensors])
        ctx.options = inputs[tensors:]

    def gradient(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return *backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options), *[None] * (
            tensors - 3 + len(ctx.options)
        )

    forward.register_autograd(gradient, setup_context=setup)


_differentiable(flash_attention, flash_attention_backward, 3)
_differentiable(flash_attention_varlen, flash_attention_varlen_backward, 5)
