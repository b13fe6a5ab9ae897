"""The plain transformers model: its config, its attention, its weights."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cftdiag.recipe.attention import needs_boundaries
from cftdiag.recipe.model_config import supported_attention
from trainer.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where the model comes from."""

    config: Any
    """The transformers config, with the attention implementation set."""
    tokenizer: Any
    """None when the model has none."""
    path: str | None
    """What ``from_pretrained`` reads the weights from; None for random initialisation."""
    attn: str
    attn_reason: str
    dtype: torch.dtype
    """The dtype that the weights were published in: the default of the export."""


def dtype_of(name: str) -> torch.dtype:
    """``float32`` -> ``torch.float32``."""
    return getattr(torch, name)


def open_source(config: TrainConfig) -> Source:
    """Read config and tokenizer, choose the attention. Raises ``ValueError`` for a missing or unusable model."""
    from transformers import AutoConfig, AutoTokenizer

    where = config.model_name_or_path
    if config.demo:
        from trainer.demo import write

        where = str(write(Path(config.output_dir) / "demo"))
    if not where:
        raise ValueError("no model: give --model-name-or-path, or --demo for the embedded one")
    if where.startswith(("/", ".", "~")) and not Path(where).is_dir():
        raise ValueError(f"no model directory {where}; give --model-name-or-path one, or a Hugging Face id")
    try:
        model_config = AutoConfig.from_pretrained(where)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot open model {where!r}: {_first_line(error)}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    attn, reason = choose_attention(config.attn, model_config)
    model_config.use_cache = False
    return Source(
        config=model_config,
        tokenizer=tokenizer,
        path=None if config.demo or config.random_init else where,
        attn=attn,
        attn_reason=reason,
        dtype=getattr(model_config, "dtype", None) or torch.float32,
    )


def choose_attention(wanted: str, config: Any) -> tuple[str, str]:
    """The attention implementation and why: ``auto`` is sdpa where the architecture takes it, else eager.

    Raises ``ValueError`` for an implementation that the architecture does not support.
    """
    cls = model_class(config)
    if wanted == "varlen":
        from cftdiag.recipe.attention import register_varlen

        register_varlen()
        return wanted, "asked for"
    if wanted == "auto":
        if not getattr(cls, "_supports_sdpa", False):
            return "eager", f"{cls.__name__} does not take sdpa"
        return "sdpa", "the default"
    supported = supported_attention(config)
    if wanted not in supported:
        raise ValueError(
            f"{cls.__name__} does not support attention {wanted!r}; it takes {', '.join(supported)}"
        )
    return wanted, "asked for"


def require_device(attn: str, device: str) -> None:
    """Raise ``ValueError`` when ``attn`` cannot train on ``device`` (``cpu`` or ``cuda``) of this machine."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    if device == "cpu" and attn == "flex_attention":
        raise ValueError(
            "attention flex_attention has no backward on a CPU in torch; give --attn sdpa, or train on CUDA"
        )
    if device == "cpu" and needs_boundaries(attn):
        raise ValueError(f"attention {attn} has CUDA kernels only; give --attn sdpa, or train on CUDA")
    installed = {
        "flash_attention_2": is_flash_attn_2_available,
        "flash_attention_3": is_flash_attn_3_available,
    }
    if attn in installed and not installed[attn]():
        raise ValueError(
            f"attention {attn} needs a package that is not installed for this torch; give --attn varlen or sdpa"
        )


def model_class(config: Any) -> type[nn.Module]:
    """The causal LM class of a config; raises ``ValueError`` when transformers has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError as error:
        raise ValueError(
            f"{getattr(config, 'model_type', type(config).__name__)!r} is not a causal language model of transformers"
        ) from error


def build_meta(source: Source, *, dtype: torch.dtype) -> nn.Module:
    """The model on the meta device: shapes and names, no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(source.config, attn_implementation=source.attn, dtype=dtype)
    return model.train()


def load_weights(source: Source, *, dtype: torch.dtype, seed: int) -> nn.Module:
    """The model with its weights on the CPU: from disk or hub, or initialised at random from ``seed``."""
    from transformers import AutoModelForCausalLM

    # A copy: transformers notes the attention in the config it is given, and that one belongs to the model
    # that is trained.
    config = copy.deepcopy(source.config)
    if source.path is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    try:
        return AutoModelForCausalLM.from_pretrained(
            source.path, config=config, attn_implementation="eager", dtype=dtype
        )
    except (OSError, RuntimeError) as error:
        raise ValueError(f"cannot load the weights of {source.path!r}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
