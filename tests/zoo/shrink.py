"""Small configurations of any architecture: what to pass to a configuration class so that its model is tiny.

Fields are known by what their names mean across transformers, never by model. Four ways are tried in turn
(:data:`WAYS`), until the model is built and trains: widths and heads divided by one number, so that
head dimensions and the ratios that configurations check stay; each part of a composite divided by its own number;
images as large as published; only depth, vocabulary and experts cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

WAYS = ("narrow", "narrow apart", "narrow, full images", "shallow")
VOCABULARY = 211
MOST_LAYERS = 4

_DEPTH = re.compile(
    r"^(num_|n_)?(\w+_)?(layers?|depth|depths|blocks|cycles|stacks)(_depth)?$|^(en|de)coder_depth$|_layers$"
)
_NOT_DEPTH = re.compile(
    r"window|feat_extract|feature_layer|out_|select|fusion|return|deepstack|full_att|skip|adapter|proj|norm"
)
_HEADS = re.compile(
    r"(^|_)heads?$|attention_heads?$|^n_head(s)?(_kv)?$|key_value_heads$|num_kv_heads$|^num_heads$"
)
_WIDTH = re.compile(
    r"(hidden|intermediate|embedding|inner|ffn|mlp|state|model|output_hidden|projector?|input)_(size|dim)$|"
    r"^(d_model|d_ff|d_inner|n_embd|n_inner|dim|embed_dim|embed_size|embedding_size|hidden|word_embed_proj_dim|projection_dim|"
    r"d_embed|ffn_dim|out_hidden_size|lm_hidden_size|lstm_dim|proj_size|width|qkv_channels|(en|de)coder_hidden|"
    r"(en|de)coder_ffn_dim|(en|de)coder_embed_dim|attention_hidden_size|lru_width|dim_ff|feat_proj_dim)$|_intermediate_size$|"
    r"_hidden_size$|_ffn_dim$|_embed_dim$|moe_intermediate\w*$|latent_size$|expert_ffn\w*$"
)
#: Widths that heads divide.
_MODEL_WIDTH = re.compile(r"hidden_size$|model$|embd$|embed_dim$|^dim$|^d_embed$|^embedding_size$")
_VOCABULARY = re.compile(r"(^|_)vocab_size$")
_EXPERTS = re.compile(r"^(num_|n_)?(local_|routed_|moe_)?(num_)?experts$")
_TOP_K = re.compile(r"experts_per_tok(en)?$|^(moe_)?top_?k$|num_selected_experts$|experts_top_k$|moe_topk$")
_GROUPS = re.compile(r"^(n|num)_(expert_)?groups?$|^topk_group$")
_TOKEN = re.compile(
    r"token_(id|index)s?$|^(image|video|audio|boi|eoi|boa|eoa)_(token|index)\w*$|_token$|_token_ids?$"
)
_IMAGE = re.compile(r"^(image_size|img_size|crop_size|pretrained_image_size)$")
_CONVOLUTIONS = re.compile(r"^(conv_dim|tdnn_dim)$")
_CHOOSES_BLOCKS = re.compile(r"layer_?drop$")


class Shrunk:
    """Overrides of one configuration tree. ``width`` is what widths and heads are divided by."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._tokens: dict[int, int] = {}

    def overrides(self, config: Any, by: int = 0) -> dict[str, Any]:
        """Keyword arguments of ``type(config)`` that make its model small; nested configurations as dicts.
        ``by`` is what all parts are divided by, where one number serves them all.
        """
        own, nested = fields(config)
        if not by:
            parts = list(_parts(config))
            shared = self._division(parts)
            by = shared if shared > 1 and self.way != "narrow apart" or len(parts) == 1 else 0
        changed: dict[str, Any] = {}
        kept, total = _kept_layers(own)
        divide = by or self._division([own])
        for name, value in own.items():
            new = self._new(name, value, kept, total, divide)
            if new is not None and new != value:
                changed[name] = new
        for name, sub in nested.items():
            changed[name] = {**sub.to_dict(), **self.overrides(sub, by)}
        return changed

    def _new(self, name: str, value: Any, kept: Sequence[int], total: int, by: int) -> Any | None:
        if isinstance(value, bool) or value is None:
            return None
        if _CHOOSES_BLOCKS.search(name) and isinstance(value, float):
            return 0.0
        if _TOKEN.search(name):
            return self._token(value)
        if isinstance(value, (list, tuple)) and len(value) == total > 2 and _is_by_layer(name, value):
            return [value[i] for i in kept]
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            return self._numbers(name, list(value), by)
        if type(value) is not int:
            return None
        if _VOCABULARY.search(name):
            return min(value, VOCABULARY)
        if _EXPERTS.search(name):
            return min(value, 4)
        if _TOP_K.search(name):
            return min(value, 2)
        if _GROUPS.search(name):
            return min(value, 1)
        if name.startswith("first_k_dense"):
            return min(value, 1)
        if _DEPTH.search(name) and not _NOT_DEPTH.search(name):
            return min(value, len(kept) if value == total else 2)
        if self.way == "shallow":
            return None
        if _IMAGE.search(name) and self.way in ("narrow", "narrow apart"):
            return _image(value)
        if _HEADS.search(name):
            return max(1, value // by)
        if _WIDTH.search(name) and value >= 64:
            return max(8, value // by)
        return None

    def _numbers(self, name: str, value: list[int], by: int) -> Any | None:
        if _DEPTH.search(name) and not _NOT_DEPTH.search(name):
            return [min(v, 2) for v in value]
        if self.way != "shallow" and _CONVOLUTIONS.search(name):
            return [min(v, 32) for v in value]
        if self.way in ("narrow", "narrow apart") and _IMAGE.search(name):
            return [_image(v) for v in value]
        return None

    def _token(self, value: Any) -> Any:
        """Special tokens that the small vocabulary holds; equal ones stay equal."""
        if isinstance(value, (list, tuple)):
            return [self._token(v) for v in value]
        if type(value) is not int or value < 0:
            return value
        return self._tokens.setdefault(value, len(self._tokens) + 1)

    def _division(self, parts: Sequence[Mapping[str, Any]]) -> int:
        """The largest number by which all heads and widths can be divided with two heads left."""
        if self.way == "shallow":
            return 1
        if any(_HEADS.search(k) and isinstance(v, (list, tuple)) for own in parts for k, v in own.items()):
            return 1  # stages of different widths, small already
        numbers = [(k, v) for own in parts for k, v in own.items() if type(v) is int and v > 1]
        heads = [v for k, v in numbers if _HEADS.search(k)]
        queries = [v for k, v in numbers if "attention_heads" in k] or heads
        widths = [v for k, v in numbers if v >= 64 and _MODEL_WIDTH.search(k)]
        for by in range(min(queries, default=16) // 2, 1, -1):
            if all(v % by == 0 for v in queries) and all(v % (8 * by) == 0 for v in widths):
                return by
        return 1


def fields(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a configuration's own values, its nested configurations) by name."""
    values = {k: v for k, v in vars(config).items() if not k.startswith("_")}
    nested = {k: v for k, v in values.items() if hasattr(v, "to_dict")}
    own = {**config.to_dict(), **values}
    return {k: v for k, v in own.items() if k not in nested and not k.startswith("_")}, nested


def _parts(config: Any) -> Iterator[dict[str, Any]]:
    own, nested = fields(config)
    yield own
    for sub in nested.values():
        yield from _parts(sub)


def _is_by_layer(name: str, value: Sequence[Any]) -> bool:
    named = name.endswith(("layers", "types", "type", "pattern"))
    return not _NOT_DEPTH.search(name) and (named or all(isinstance(v, (str, bool)) for v in value))


def _image(value: int) -> int:
    return min(value, 64) if value % 16 == 0 else value


def _kept_layers(own: Mapping[str, Any]) -> tuple[list[int], int]:
    """(layers to keep, how many there are): the first of each kind that lists with an entry a layer tell
    apart, and two at least.
    """
    counts = [
        v
        for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
        if type(v := own.get(k)) is int
    ]
    total = counts[0] if counts else 0
    if total <= 2:
        return list(range(total)), total
    lists = [
        v
        for k, v in own.items()
        if isinstance(v, (list, tuple))
        and len(v) == total
        and all(isinstance(x, (str, bool, int)) for x in v)
    ]
    rows = [tuple(map(str, row)) for row in zip(*lists, strict=True)] if lists else []
    first = sorted({row: i for i, row in reversed(list(enumerate(rows)))}.values())[:MOST_LAYERS]
    more: Callable[[], Any] = lambda: next(i for i in range(total) if i not in first)  # noqa: E731
    while len(first) < 2:
        first = sorted([*first, more()])
    return first, total
