"""``from_pretrained`` without weights: models come from their configuration alone."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from cftdiag.rehearse.import_hooks import after_import
from cftdiag.rehearse.remedies import Applied, configured
from cftdiag.rehearse.settings import Rehearsal

#: Arguments of ``from_pretrained`` that say where to find files, for the configuration too.
_WHERE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
#: Arguments that only loading weights understands.
_LOADING = (
    "state_dict", "ignore_mismatched_sizes", "use_safetensors", "weights_only", "fusion_config", "disable_mmap",
    "proxies", "tqdm_class", "device_map", "max_memory", "offload_folder", "offload_buffers", "_commit_hash",
    "variant", "adapter_kwargs", "adapter_name", "generation_config", "gguf_file", "distributed_config",
    "device_mesh", "tp_plan", "tp_size", "trust_remote_code", "use_kernels", "kernel_config", "key_mapping",
    "low_cpu_mem_usage", "_from_auto", "_from_pipeline", "mirror", "_fast_init", "from_tf", "from_flax",
    "offload_state_dict", "quantization_config",
)  # fmt: skip


#: Arguments that reading a configuration uses up.
_READING = (
    *_WHERE,
    "proxies",
    "trust_remote_code",
    "_from_pipeline",
    "_from_auto",
    "_commit_hash",
    "gguf_file",
)
#: Layers of a model that is computed with, to see whether a script fails by itself.
PLAIN_LAYERS = 2
#: What was taken for something else, for the report.
NOTES: list[str] = []


def install(settings: Rehearsal, applied: Applied) -> None:
    """Wait for transformers."""
    if not settings.weights:
        after_import("transformers.modeling_utils", functools.partial(_models, settings, applied))
    after_import("transformers.configuration_utils", _configurations)
    after_import("huggingface_hub.constants", _offline_where_no_hub_answers)


def _offline_where_no_hub_answers(module: ModuleType) -> None:
    """A hub that cannot be reached is asked for nothing: each question would be tried for most of a minute."""
    real = getattr(module, "is_offline_mode", None)
    if real is not None:
        module.__dict__["is_offline_mode"] = functools.wraps(real)(lambda: real() or not _hub_answers())


def _models(settings: Rehearsal, applied: Applied, module: ModuleType) -> None:
    cls = module.PreTrainedModel
    cls.from_pretrained = classmethod(functools.wraps(cls.from_pretrained.__func__)(_from_pretrained))
    cls._from_config = classmethod(_marked(settings, applied, cls._from_config.__func__))


def _marked(settings: Rehearsal, applied: Applied, real: Callable[..., Any]) -> Callable[..., Any]:
    """Build under the attention that the script asks for, and take all weights for uncomputed."""

    @functools.wraps(real)
    def build(cls: Any, config: Any, **kwargs: Any) -> Any:
        from cftdiag.fastforward import mark_weights

        _stand_in(kwargs.get("attn_implementation"))
        configured(config, settings, applied)
        if settings.plain:
            return real(cls, _small(config), **kwargs)
        return mark_weights(real(cls, config, **kwargs))

    return build


def _small(config: Any) -> Any:
    """The configuration with its first layers only, where it says how many it has."""
    from cftdiag.recipe.layers import number_of_layers, select_layers

    with contextlib.suppress(ValueError):
        return select_layers(config, range(min(number_of_layers(config), PLAIN_LAYERS)))
    return config


def _from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
    from transformers import PreTrainedConfig

    config = kwargs.pop("config", None)
    loading_info = kwargs.pop("output_loading_info", False)
    dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
    kwargs.pop("torch_dtype", None)
    attention = kwargs.pop("attn_implementation", None)
    where = {key: kwargs.pop(key) for key in _WHERE if key in kwargs}
    if kwargs.get("quantization_config") is not None:
        NOTES.append("quantization_config was left out: the linear layers are those of the model without it")
    for key in _LOADING:
        kwargs.pop(key, None)
    if not isinstance(config, PreTrainedConfig):
        config, kwargs = cls.config_class.from_pretrained(
            config or pretrained_model_name_or_path, return_unused_kwargs=True, **where, **kwargs
        )
    config.name_or_path = str(pretrained_model_name_or_path)
    if attention is not None:
        kwargs["attn_implementation"] = attention
    if dtype not in (None, "auto"):
        kwargs["dtype"] = dtype
    model = cls._from_config(config, *model_args, **kwargs).eval()
    info: dict[str, Any] = {
        "missing_keys": set(),
        "unexpected_keys": set(),
        "mismatched_keys": set(),
        "error_msgs": [],
    }
    return (model, info) if loading_info else model


def _stand_in(attention: Any) -> None:
    """Kernels that are not here have their Python path and their shapes."""
    if not isinstance(attention, str):
        return
    if attention.startswith("flash_attention"):
        from cftdiag.recipe import flash_standins

        flash_standins.install()
    elif attention == "flex_attention":
        from cftdiag.recipe import flex_on_cpu

        flex_on_cpu.install()


def _configurations(module: ModuleType) -> None:
    """A configuration that neither the disk nor the hub gives is taken from our catalogue."""
    cls = module.PreTrainedConfig
    real = cls.get_config_dict.__func__

    @functools.wraps(real)
    def get_config_dict(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        from cftdiag import catalogue

        name = str(pretrained_model_name_or_path)
        known = None if os.path.exists(name) else catalogue.find(name)
        if known is None or _hub_answers():
            return real(cls, pretrained_model_name_or_path, **kwargs)
        with contextlib.suppress(OSError):
            return real(cls, pretrained_model_name_or_path, **{**kwargs, "local_files_only": True})
        NOTES.append(
            f"the hub cannot be reached: the configuration of {name} is the catalogue's, its data type taken for bfloat16"
        )
        unused = {key: value for key, value in kwargs.items() if key not in _READING}
        return {"model_type": known.model_type, "dtype": "bfloat16", **known.config}, unused

    cls.get_config_dict = classmethod(get_config_dict)


@functools.cache
def _hub_answers() -> bool:
    """Whether a connection to the hub can be made."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or address.hostname is None:
        return False
    if any(getproxies().get(scheme) for scheme in ("https", "all")):
        return True  # the proxy's to answer
    try:
        with socket.create_connection((address.hostname, address.port or 443), timeout=5):
            return True
    except OSError:
        return False
