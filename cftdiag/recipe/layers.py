"""Configurations with fewer layers that still hold every kind of block."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig

from cftdiag.recipe.blocks import traits
from cftdiag.recipe.model_config import meta_model
from cftdiag.recipe.stacks import stacks

#: Attributes that list layer numbers.
_INDEX_LISTS = (
    "mlp_only_layers",
    "full_attn_idxs",
    "attn_layer_indices",
    "global_attn_layers",
    "attention_layers_idx",
    "cross_attention_layers",
)
#: Attributes that give one value a layer in a string, one character each.
_PATTERNS = ("hybrid_override_pattern", "layers_block_type_pattern")


def number_of_layers(config: PretrainedConfig) -> int:
    """Number of layers of the text model; ``ValueError`` when the configuration does not say."""
    n = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{config.model_type} configuration has no usable num_hidden_layers ({n!r})")
    return n


def select_layers(config: PretrainedConfig, kept: Sequence[int]) -> PretrainedConfig:
    """A copy of the configuration with only the given layers, in order.

    Lists with one entry a layer (``layer_types``, ``no_rope_layers``), lists of layer numbers
    (``mlp_only_layers``), patterns (``hybrid_override_pattern``) and counts of leading or trailing layers
    (``first_k_dense_replace``, ``num_kv_shared_layers``) are cut with them.
    """
    total = number_of_layers(config)
    if not kept or min(kept) < 0 or max(kept) >= total:
        raise ValueError(f"layers {list(kept)} are not among the {total} layers of this configuration")
    config = copy.deepcopy(config)
    text = config.get_text_config()
    overrides = text.to_dict().get("per_layer_config") if getattr(text, "is_heterogeneous", False) else None
    for name, value in list(vars(text).items()):
        if not name.startswith("_") and (new := _cut(name, value, kept, total)) is not value:
            setattr(text, name, new)
    _set_count(text, len(kept))
    if overrides:
        by_layer = {int(layer): values for layer, values in overrides.items()}
        text.per_layer_config = {new: by_layer[old] for new, old in enumerate(kept) if old in by_layer}
    return config


def _set_count(text: PretrainedConfig, count: int) -> None:
    try:
        text.num_hidden_layers = count
    except (AttributeError, NotImplementedError):
        return  # derived from a list that was cut already (Nemotron-H)


def _cut(name: str, value: Any, kept: Sequence[int], total: int) -> Any:
    if name in _INDEX_LISTS and isinstance(value, (list, tuple)):
        return type(value)(new for new, old in enumerate(kept) if old in value)
    if isinstance(value, (list, tuple)) and len(value) == total:
        return type(value)(value[i] for i in kept)
    if name in _PATTERNS and isinstance(value, str) and len(value) == total:
        return "".join(value[i] for i in kept)
    if name == "first_k_dense_replace" and isinstance(value, int):
        return sum(i < value for i in kept)
    if name in ("num_kv_shared_layers",) and isinstance(value, int):
        return sum(i >= total - value for i in kept)
    if name == "max_window_layers" and isinstance(value, int) and value < total:
        return sum(i < value for i in kept)
    return value


def truncate(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """A copy of the configuration with its first ``layers`` layers; all of them when it has no more."""
    if layers < 1:
        raise ValueError(f"{layers} layers: at least one is needed")
    total = number_of_layers(config)
    return copy.deepcopy(config) if layers >= total else select_layers(config, range(layers))


def _kinds(config: PretrainedConfig) -> list[tuple[str, tuple[int, ...]]]:
    """(traits, layer numbers) of each kind of block, by building on the meta device."""
    kinds: dict[str, list[int]] = {}
    longest = max(stacks(meta_model(config)).values(), key=len)  # the one that the layer number counts
    for i, (_, block) in enumerate(longest):
        kinds.setdefault(repr(sorted(traits(block))), []).append(i)
    return [(kind, tuple(layers)) for kind, layers in kinds.items()]


def auto_selection(config: PretrainedConfig) -> tuple[int, ...]:
    """Numbers of the fewest layers that hold every kind of block.

    The first layer of each kind; where a model is only itself with its leading layers (a rule of the layer
    number that no list states), the shortest prefix; where it is with neither (layers that share keys and
    values with earlier ones), all layers.
    """
    total = number_of_layers(config)
    kinds = _kinds(config)
    firsts = sorted(numbers[0] for _, numbers in kinds)
    wanted = {kind for kind, _ in kinds}
    for kept in (firsts, range(max(firsts) + 1)):
        try:
            if len(kept) < total and {kind for kind, _ in _kinds(select_layers(config, kept))} == wanted:
                return tuple(kept)
        except ValueError:
            continue
    return tuple(range(total))


def auto_layers(config: PretrainedConfig) -> int:
    """Number of layers in `auto_selection`."""
    return len(auto_selection(config))


def cut(config: PretrainedConfig, layers: int | str | None) -> PretrainedConfig:
    """Copy of the configuration for ``layers``: None or ``all``, ``auto``, or a number of leading layers."""
    number_of_layers(config)
    if layers is None or layers == "all":
        return copy.deepcopy(config)
    if layers == "auto":
        return select_layers(config, auto_selection(config))
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise ValueError(f"layers {layers!r} is neither a number nor 'all' nor 'auto'")
    return truncate(config, layers)
