"""The programs of the truth test: small models, and what is varied around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_SMALL: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}
DENSE = {"model_type": "qwen3", "tie_word_embeddings": True, **_SMALL}
SLIDING = {
    "model_type": "gemma3_text", "sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 32, **_SMALL,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "norm_topk_prob": True, **_SMALL,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """One program and the lengths that it trains on, in order."""

    config: Mapping[str, Any]
    lengths: tuple[int, ...]
    batch_size: int = 2
    dtype: str = "float32"
    dynamic: bool | None = True
    ac: str = "none"
    scope: str = "block"
    world_size: int = 1
    """More than 1: FSDP2, on gloo for real and on the fake group for the prediction."""
    osft: bool = False
    """Freeze what OSFT freezes and train the low-rank rest (`trainer.osft`)."""


#: Lengths on both sides of what Inductor's CPU code generation asks for (256, 1024, 4096 over the batch),
#: none equal to a model dimension.
_WIDE = (100, 300, 520, 777, 1030, 2050, 200)

SCENARIOS: Mapping[str, Scenario] = {
    "smallest": Scenario(config={**DENSE, "num_hidden_layers": 1}, lengths=(100, 300, 120)),
    "dense": Scenario(config=DENSE, lengths=_WIDE),
    "dense_reversed": Scenario(config=DENSE, lengths=_WIDE[::-1]),
    "dense_auto": Scenario(config=DENSE, lengths=_WIDE, dynamic=None),
    "dense_bf16_ac": Scenario(config=DENSE, lengths=(100, 520, 1030), dtype="bfloat16", ac="full"),
    "dense_model": Scenario(config=DENSE, lengths=(100, 520, 1030), scope="model"),
    "sliding": Scenario(config=SLIDING, lengths=(100, 300, 520, 1030)),
    "moe": Scenario(config=MOE, lengths=(100, 300, 520)),
    "osft": Scenario(config=DENSE, lengths=(100, 520, 1030), osft=True),
    "fsdp": Scenario(config={**DENSE, "tie_word_embeddings": False}, lengths=(100, 520, 1030), world_size=2),
}
