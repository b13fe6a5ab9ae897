"""Causal language models built in seconds, with real buffers and without weights."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from cftdiag.error_text import one_line
from cftdiag.fastforward import SkipMode, mark_weights
from cftdiag.options import ATTENTIONS, DTYPE_ALIASES, DTYPES
from cftdiag.recipe.layers import cut
from cftdiag.recipe.model_config import (
    brings_code,
    causal_lm_class,
    load_config,
    supported_attention,
)


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """``torch.dtype`` of a name in ``DTYPES`` or ``DTYPE_ALIASES``; ``ValueError`` for others."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = DTYPE_ALIASES.get(dtype, dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def build_model(
    source: Mapping[str, Any] | PretrainedConfig | str | Path,
    *,
    attn: str = "sdpa",
    dtype: str | torch.dtype = "bfloat16",
    layers: int | str | None = None,
    seed: int = 0,
    weights: bool = False,
) -> Any:
    """A causal language model in training mode, ``use_cache`` off, from a configuration (see `load_config`).

    Without ``weights`` the parameters are allocated and never touched, and marked as skipped: run the model
    under `SkipMode`. Buffers (rotary frequencies) are real, tied weights are tied. With ``weights`` it is
    initialised like any new model, reproducibly by ``seed``. ``layers`` is None for all, a number of leading
    layers, or ``auto``. ``ValueError`` (one line) for a configuration that does not build and for an
    attention that the architecture refuses.
    """
    config = cut(load_config(source), layers)
    _check_attention(config, attn, dtype_of(dtype))
    _install_stand_ins(attn)
    config.use_cache = False
    torch.manual_seed(seed)
    try:
        with contextlib.nullcontext() if weights else SkipMode():
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype_of(dtype), attn_implementation=attn, trust_remote_code=brings_code(config)
            )
    except MemoryError:
        raise
    except Exception as error:  # a model class may raise anything for sizes that do not fit together
        raise ValueError(
            f"no {config.model_type} model can be built from this configuration: {one_line(error, typed=False)}"
        ) from error
    if not weights:
        mark_weights(model)
    return model.train()


def _install_stand_ins(attn: str) -> None:
    if attn.startswith("flash_attention"):
        from cftdiag.recipe import flash_standins

        flash_standins.install()
    elif attn == "flex_attention":
        from cftdiag.recipe import flex_on_cpu

        flex_on_cpu.install()


def _check_attention(config: PretrainedConfig, attn: str, dtype: torch.dtype) -> None:
    supported = supported_attention(config)
    if attn not in supported:
        known = "" if attn in ATTENTIONS else "unknown "
        raise ValueError(
            f"{known}attention {attn!r} is not supported by {causal_lm_class(config).__name__}; it supports {', '.join(supported)}"
        )
    if attn.startswith("flash_attention") and dtype == torch.float32:
        raise ValueError(
            f"attention {attn!r} runs in bfloat16 or float16, not in float32; give one of them, or use sdpa"
        )
