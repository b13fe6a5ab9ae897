"""Packages of kernels that the script imports and this machine has not: modules of the same names and shapes.

Only what a rehearsal was told is stood in for: a script that asks politely whether a package is there is to get the
true answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Packages that can be stood in for -> their modules.
STAND_INS: Mapping[str, tuple[str, ...]] = {
    "flash_attn": ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding"),
}
#: Packages whose kernels are not run in a rehearsal, but whose Python is: they have to be installed.
KERNELS = frozenset(
    {
        "apex", "bitsandbytes", "causal_conv1d", "deepspeed", "fla", "flash_attn", "flash_attn_interface", "liger_kernel",
        "mamba_ssm", "torchao", "transformer_engine", "triton", "unsloth", "vllm", "xformers",
    }
)  # fmt: skip


def install(packages: tuple[str, ...]) -> None:
    """Let these packages be imported for the rest of this process."""
    modules = {name for package in packages for name in STAND_INS[package]}
    if modules:
        sys.meta_path.append(_Finder(modules))  # type: ignore[arg-type]


class _Finder:
    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        # a folder that is none: submodules are asked of this finder too
        return ModuleSpec(name, self, is_package=name in STAND_INS)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The default."""

    def exec_module(self, module: ModuleType) -> None:
        for name, value in (_padding() if module.__name__.endswith("bert_padding") else _attention()).items():
            setattr(module, name, value)
        module.__dict__["__version__"] = "2.8.0"


def _attention() -> dict[str, Callable[..., Any]]:
    from cftdiag.recipe.flash_kernels import flash_attention, flash_attention_varlen

    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out, lse = flash_attention(q, k, v, scale, causal, *window_size, softcap)[:2]
        return (out, lse, None) if return_attn_probs else out

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse = flash_attention_varlen(q, k, v, *ends, scale, causal, *window_size, softcap)[:2]
        return (out, lse, None) if return_attn_probs else out

    def flash_attn_qkvpacked_func(qkv, *args, **kwargs):  # type: ignore[no-untyped-def]
        q, k, v = qkv.unbind(2)
        return flash_attn_func(q, k, v, *args, **kwargs)

    def flash_attn_kvpacked_func(q, kv, *args, **kwargs):  # type: ignore[no-untyped-def]
        k, v = kv.unbind(2)
        return flash_attn_func(q, k, v, *args, **kwargs)

    def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *args, **kwargs):  # type: ignore[no-untyped-def]
        q, k, v = qkv.unbind(1)
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs
        )

    def flash_attn_varlen_kvpacked_func(q, kv, *args, **kwargs):  # type: ignore[no-untyped-def]
        k, v = kv.unbind(1)
        return flash_attn_varlen_func(q, k, v, *args, **kwargs)

    return {name: value for name, value in locals().items() if name.startswith("flash_attn")}


def _padding() -> dict[str, Callable[..., Any]]:
    import torch
    import torch.nn.functional as functional

    def index_first_axis(x, indices):  # type: ignore[no-untyped-def]
        return x[indices]

    def index_put_first_axis(values, indices, first_axis_dim):  # type: ignore[no-untyped-def]
        out = values.new_zeros(first_axis_dim, *values.shape[1:])
        out[indices] = values
        return out

    def pad_input(hidden_states, indices, batch, seqlen):  # type: ignore[no-untyped-def]
        return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))

    def unpad_input(hidden_states, attention_mask, unused_mask=None):  # type: ignore[no-untyped-def]
        every = attention_mask if unused_mask is None else attention_mask + unused_mask
        lengths = every.sum(-1, dtype=torch.int32)
        used = attention_mask.sum(-1, dtype=torch.int32)
        indices = torch.nonzero(every.flatten(), as_tuple=False).flatten()
        ends = functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
        return hidden_states.flatten(0, 1)[indices], indices, ends, lengths.max().item(), used

    return {
        function.__name__: function
        for function in (index_first_axis, index_put_first_axis, pad_input, unpad_input)
    }
