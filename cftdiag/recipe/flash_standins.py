"""Puts stand-ins for flash-attention kernels where transformers looks for them, so that its own Python path
is what is traced.

The functions have the signatures of flash-attn 2 and of flash-attn 3 (``flash_attn_interface``), because
transformers decides by the signature which arguments to pass. Kernels that are installed are left alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import transformers.modeling_flash_attention_utils as utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cftdiag.recipe.flash_kernels import flash_attention, flash_attention_varlen

_Window = tuple[int, int]


def _scale(q: torch.Tensor, softmax_scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale


def _dense(q: Any, k: Any, v: Any, scale: float | None, causal: bool, window: _Window, softcap: float) -> Any:
    return flash_attention(q, k, v, _scale(q, scale), causal, *window, softcap)[0]


def _varlen(
    q: Any,
    k: Any,
    v: Any,
    cu: Any,
    maximum: Any,
    scale: float | None,
    causal: bool,
    window: _Window,
    softcap: float,
) -> Any:
    return flash_attention_varlen(q, k, v, *cu, *maximum, _scale(q, scale), causal, *window, softcap)[0]


def _fa2(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False,
):  # type: ignore[no-untyped-def]  # fmt: skip
    return _dense(q, k, v, softmax_scale, causal, window_size, softcap)


def _fa2_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # type: ignore[no-untyped-def]  # fmt: skip
    ends, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _varlen(q, k, v, ends, longest, softmax_scale, causal, window_size, softcap)


def _fa3(
    q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # type: ignore[no-untyped-def]  # fmt: skip
    return _dense(q, k, v, softmax_scale, causal, window_size, softcap)


def _fa3_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False,
    qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
    pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # type: ignore[no-untyped-def]  # fmt: skip
    ends, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _varlen(q, k, v, ends, longest, softmax_scale, causal, window_size, softcap)


def _fa3_sink(
    q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, num_splits=0, pack_gqa=None, deterministic=False,
    sm_margin=0, s_aux=None,
):  # type: ignore[no-untyped-def]  # fmt: skip
    return _with_sink(_dense(q, k, v, softmax_scale, causal, window_size, softcap), s_aux)


def _fa3_sink_varlen(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, num_splits=0, deterministic=False, s_aux=None,
):  # type: ignore[no-untyped-def]  # fmt: skip
    ends, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _with_sink(_varlen(q, k, v, ends, longest, softmax_scale, causal, window_size, softcap), s_aux)


def _with_sink(out: torch.Tensor, s_aux: torch.Tensor | None) -> torch.Tensor:
    """The sink's place in the graph: its gradient flows; its exact value needs the kernel."""
    return out if s_aux is None else out * torch.sigmoid(-s_aux).unsqueeze(-1)


def _kernels_for(implementation: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if implementation == "flash_attention_2" or "flash-attn2" in implementation:
        return _fa2, _fa2_varlen
    if "vllm-flash-attn3" in implementation:
        return _fa3_sink, _fa3_sink_varlen
    return _fa3, _fa3_varlen


def _register(implementation: str) -> None:
    """A kernel from the hub is an attention implementation of its own name, as transformers registers it when
    it loads one.
    """
    if implementation not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(implementation, flash_attention_forward)
        ALL_MASK_ATTENTION_FUNCTIONS.register(
            implementation, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
        )


def _import_where_left_out() -> None:
    """Some model files import the call of the kernels only where one is installed; those loaded before the
    stand-ins came get it now.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and "is_flash_attn_available" in vars(module):
            vars(module).setdefault("_flash_attention_forward", utils._flash_attention_forward)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Inside, transformers finds flash-attention 2 and 3 kernels: the installed ones, else stand-ins.

    What it has loaded stays loaded afterwards, so models built inside go on working.
    """
    load, matrix = utils._lazy_imports, utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX
    installed = {f"flash_attention_{n}": matrix[n]["general_availability_check"]() for n in (2, 3)}

    def lazy_imports(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        if implementation is None or installed.get(implementation):
            return load(implementation, *args, **kwargs)
        _register(implementation)
        return (*_kernels_for(implementation), None, utils._pad_input, utils._unpad_input)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(utils, "_lazy_imports", lazy_imports))
        if hasattr(utils, "is_flash_attn_available"):
            stack.enter_context(mock.patch.object(utils, "is_flash_attn_available", lambda **_: True))
        _import_where_left_out()
        for n in (2, 3):
            if not installed[f"flash_attention_{n}"]:
                found = {
                    "general_availability_check": lambda *_, **__: True,
                    "supported_devices": ((lambda: True, "cuda"),),
                }
                stack.enter_context(mock.patch.dict(matrix[n], found))
        yield


_installed = contextlib.ExitStack()


def install() -> None:
    """Enter `stand_ins` for the rest of this process; repeated calls do nothing."""
    if utils._lazy_imports.__module__ == utils.__name__:
        _installed.enter_context(stand_ins())
