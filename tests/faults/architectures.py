"""Tiny real models of transformers: two or three blocks, random weights, a few thousand parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_LLAMA = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    pad_token_id=0,
)
_BERT = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    max_position_embeddings=128,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
_VIT = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    image_size=16,
    patch_size=4,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to build one model. ``block`` is the class of its blocks, ``blocks`` the paths of their lists, ``layers`` the
    name of its config's number of blocks, ``inputs`` what a batch is: ``text``, ``pair`` (encoder and decoder), ``image`` or ``sound``.
    """

    type: str
    model: str
    block: str
    blocks: tuple[str, ...]
    config: Mapping[str, Any]
    layers: str = "num_hidden_layers"
    inputs: str = "text"

    @property
    def varies(self) -> bool:
        """True where the length of a batch is free."""
        return self.inputs in ("text", "pair")


def _text(kind: str, model: str, block: str, blocks: str = "model.layers", **config: Any) -> Architecture:
    layers = config.pop("layers", "num_hidden_layers")
    base = {} if config.pop("own", False) else _LLAMA
    return Architecture(
        type=kind, model=model, block=block, blocks=(blocks,), config={**base, **config}, layers=layers
    )


def _bert(kind: str, model: str, block: str, blocks: str, **config: Any) -> Architecture:
    return Architecture(type=kind, model=model, block=block, blocks=(blocks,), config={**_BERT, **config})


ARCHITECTURES = (
    _text("llama", "LlamaForCausalLM", "LlamaDecoderLayer"),
    _text("mistral", "MistralForCausalLM", "MistralDecoderLayer", sliding_window=None),
    _text("qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer"),
    _text("qwen3", "Qwen3ForCausalLM", "Qwen3DecoderLayer", head_dim=8),
    _text("olmo2", "Olmo2ForCausalLM", "Olmo2DecoderLayer"),
    _text("granite", "GraniteForCausalLM", "GraniteDecoderLayer"),
    _text("cohere", "CohereForCausalLM", "CohereDecoderLayer"),
    _text(
        "starcoder2",
        "Starcoder2ForCausalLM",
        "Starcoder2DecoderLayer",
        sliding_window=None,
        residual_dropout=0.0,
        embedding_dropout=0.0,
    ),
    _text("stablelm", "StableLmForCausalLM", "StableLmDecoderLayer"),
    _text("gemma", "GemmaForCausalLM", "GemmaDecoderLayer", head_dim=8),
    _text("glm", "GlmForCausalLM", "GlmDecoderLayer", head_dim=8),
    _text("phi", "PhiForCausalLM", "PhiDecoderLayer"),
    _text("phi3", "Phi3ForCausalLM", "Phi3DecoderLayer"),
    _text("nemotron", "NemotronForCausalLM", "NemotronDecoderLayer"),
    _text("helium", "HeliumForCausalLM", "HeliumDecoderLayer", head_dim=8),
    _text(
        "smollm3", "SmolLM3ForCausalLM", "SmolLM3DecoderLayer", no_rope_layers=None, use_sliding_window=False
    ),
    _text(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXLayer",
        "gpt_neox.layers",
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
    _text(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Block",
        "transformer.h",
        own=True,
        layers="n_layer",
        vocab_size=64,
        n_embd=32,
        n_head=4,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    _text(
        "opt",
        "OPTForCausalLM",
        "OPTDecoderLayer",
        "model.decoder.layers",
        own=True,
        vocab_size=64,
        hidden_size=32,
        ffn_dim=48,
        num_attention_heads=4,
        max_position_embeddings=128,
        word_embed_proj_dim=32,
        dropout=0.0,
    ),
    _bert("bert", "BertForMaskedLM", "BertLayer", "bert.encoder.layer"),
    _bert("roberta", "RobertaForMaskedLM", "RobertaLayer", "roberta.encoder.layer", pad_token_id=0),
    _bert("electra", "ElectraForMaskedLM", "ElectraLayer", "electra.encoder.layer", embedding_size=32),
    Architecture(
        type="vit",
        model="ViTForImageClassification",
        block="ViTLayer",
        blocks=("vit.layers",),
        inputs="image",
        config=_VIT,
    ),
    Architecture(
        type="dinov2",
        model="Dinov2ForImageClassification",
        block="Dinov2Layer",
        blocks=("dinov2.encoder.layer",),
        inputs="image",
        config=_VIT,
    ),
    Architecture(
        type="wav2vec2",
        model="Wav2Vec2ForCTC",
        block="Wav2Vec2EncoderLayer",
        blocks=("wav2vec2.encoder.layers",),
        inputs="sound",
        config=dict(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            conv_dim=(16, 16),
            conv_stride=(4, 2),
            conv_kernel=(8, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            apply_spec_augment=False,
        ),
    ),
)

DECODERS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "olmo2",
    "granite",
    "cohere",
    "stablelm",
    "gemma",
    "glm",
    "phi",
    "phi3",
    "nemotron",
    "helium",
    "smollm3",
    "gpt_neox",
)
"""Language models whose blocks take a mask and a cache that the model makes."""
PASSES_KEYWORDS = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "glm", "phi3", "helium", "smollm3")
"""Models that hand keywords they do not know on to their blocks."""
