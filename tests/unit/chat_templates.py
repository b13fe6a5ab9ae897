"""Tokenizers with the chat templates that trl ships, for tests: bytes, and the template's own special tokens."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SPECIAL = re.compile(
    r"<[|\uff5c][A-Za-z_\u25810-9]+[|\uff5c]>|</?(?:start|end)_of_turn>|<turn\|>|<\|turn>|<end_of_utterance>|<\|channel>|<channel\|>"
)
_END = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>"),
    *("<|END_OF_TURN_TOKEN|>", "<turn|>"),
)


def directory() -> Path | None:
    """Where they are; None without trl."""
    found = find_spec("trl")
    place = Path(found.submodule_search_locations[0]) / "chat_templates" if found else None  # type: ignore[index]
    return place if place is not None and place.is_dir() else None


def names() -> list[str]:
    """All templates but those that trl made for training."""
    where = directory()
    return sorted(p.stem for p in where.glob("*.jinja") if not p.stem.endswith("_training")) if where else []


def template(name: str) -> str:
    """The text of one."""
    where = directory()
    assert where is not None
    return (where / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer(text: str) -> Any:
    """One that a template works with."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = {*_SPECIAL.findall(text), "<s>", "</s>", "<|endoftext|>"}
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(special)])
    inner.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")]
    )
    end = next((token for token in _END if token in text), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token=end, chat_template=text)
