"""A tokenizer of a few words, a small Qwen3 and sentences of many lengths: nothing comes from a hub."""

import random

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

WORDS = [f"w{i}" for i in range(200)]
CHAT = "{% for m in messages %}{{ m.role }} {{ m.content }} <eos> {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"


def tokenizer():
    known = ["<pad>", "<eos>", "<unk>", "user", "assistant", *WORDS]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=CHAT
    )


def config(**more):
    return Qwen3Config(
        **{
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": None,
            **more,
        }
    )


def sentences(count, shortest=5, longest=90, seed=0):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(shortest, longest))) for _ in range(count)]
