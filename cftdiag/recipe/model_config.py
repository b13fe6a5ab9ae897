"""Configurations of causal language models, without weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from cftdiag.error_text import one_line
from cftdiag.options import ATTENTIONS

#: Largest head dimension of flash-attention 2 and 3 kernels.
FLASH_MAX_HEAD_DIM = 256


def load_config(
    source: Mapping[str, Any] | PretrainedConfig | str | Path, *, trust_remote_code: bool = False
) -> PretrainedConfig:
    """Configuration from a dict with ``model_type``, a config object, a config.json or the directory that
    holds one.

    A config object is copied, so that the caller's is never changed. Raises ``ValueError`` (one line) for a
    missing, malformed or unknown configuration. Code that comes with a directory is run only with
    ``trust_remote_code``.
    """
    if isinstance(source, PretrainedConfig):
        return copy.deepcopy(source)
    if isinstance(source, Mapping):
        return _from_dict(dict(source), "the configuration")
    path = Path(source)
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {one_line(error, typed=False)}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{file} holds a JSON {type(data).__name__}, not an object")
    if trust_remote_code and "auto_map" in data:
        try:
            return AutoConfig.from_pretrained(str(file.parent), trust_remote_code=True)
        except (Exception, SystemExit) as error:  # somebody else's code may raise anything
            raise ValueError(
                f"{file}: the code that comes with it raised {one_line(error, typed=False)}"
            ) from error
    try:
        return _from_dict(data, str(file))
    except ValueError as error:
        if "auto_map" in data and "is unknown to this version" in str(error):
            raise ValueError(
                f"{error}; it brings its own code: pass --trust-remote-code if you trust it"
            ) from error
        raise


def _from_dict(data: dict[str, Any], name: str) -> PretrainedConfig:
    model_type = data.pop("model_type", None)
    if not isinstance(model_type, str):
        raise ValueError(f"{name} has no model_type (a string such as 'qwen3')")
    try:
        return cast(PretrainedConfig, AutoConfig.for_model(model_type, **data))
    except Exception as error:  # a config class may raise anything for a value it did not expect
        if "Unrecognized model identifier" in str(error):
            raise ValueError(
                f"{name}: model_type {model_type!r} is unknown to this version of transformers"
            ) from error
        raise ValueError(
            f"{name} is not a valid {model_type} configuration: {one_line(error, typed=False)}"
        ) from error


def brings_code(config: PretrainedConfig) -> bool:
    """True for a configuration whose causal language model class came with its directory, by code that the
    user trusted.
    """
    own = type(config).__module__.startswith("transformers_modules")
    return own and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})


def causal_lm_class(config: PretrainedConfig) -> Any:
    """The causal language model class of a configuration; ``ValueError`` when it has none."""
    if brings_code(config):
        try:
            return get_class_from_dynamic_module(
                config.auto_map["AutoModelForCausalLM"], config._name_or_path
            )
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{config._name_or_path}: the code that comes with it raised {one_line(error, typed=False)}"
            ) from error
    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise ValueError(
            f"{config.model_type} has no causal language model; give file.py:build to check its forward"
        ) from None


def _largest_head(config: PretrainedConfig) -> int:
    text = config.get_text_config()
    layers = list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text]
    return max(map(_head_dim, layers), default=0)


def _head_dim(config: PretrainedConfig) -> int:
    known = [d for name in ("head_dim", "qk_head_dim") if isinstance(d := getattr(config, name, None), int)]
    heads, hidden = getattr(config, "num_attention_heads", None), getattr(config, "hidden_size", None)
    if not known and isinstance(heads, int) and isinstance(hidden, int) and heads:
        known = [hidden // heads]
    return max(known, default=0)


def supported_attention(config: PretrainedConfig) -> tuple[str, ...]:
    """The entries of `ATTENTIONS` that the architecture supports; flash kernels also limit the head dimension."""
    cls = causal_lm_class(config)
    flash = cls._supports_flash_attn and _largest_head(config) <= FLASH_MAX_HEAD_DIM
    flags = {
        "sdpa": cls._supports_sdpa,
        "eager": True,
        "flex_attention": cls._supports_flex_attn,
        "flash_attention_2": flash,
        "flash_attention_3": flash,
    }
    return tuple(name for name in ATTENTIONS if flags[name])


def meta_model(config: PretrainedConfig) -> torch.nn.Module:
    """The model on the meta device: shapes and names, no memory."""
    causal_lm_class(config)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                copy.deepcopy(config), attn_implementation="eager", trust_remote_code=brings_code(config)
            )
    except Exception as error:  # a model class may raise anything for sizes that do not fit together
        raise ValueError(
            f"no {config.model_type} model can be built from this configuration: {one_line(error, typed=False)}"
        ) from error


def count_parameters(source: Mapping[str, Any] | PretrainedConfig | str | Path) -> int:
    """Number of parameters, tied ones once, counted on the meta device."""
    return sum(p.numel() for p in meta_model(load_config(source)).parameters())
