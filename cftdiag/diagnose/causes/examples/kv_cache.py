"""A model of transformers is called as it comes: use_cache is on, so each block is given a cache."""

import torch
from transformers import GPTJConfig, GPTJForCausalLM


def build():
    config = GPTJConfig(
        vocab_size=50, n_embd=16, n_layer=3, n_head=2, rotary_dim=4, n_inner=32, attn_implementation="eager"
    )
    ids = torch.randint(0, 50, (2, 8))
    return GPTJForCausalLM(config), [{"input_ids": ids, "labels": ids} for _ in range(2)]
