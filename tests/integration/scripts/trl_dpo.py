"""TRL's DPO with LoRA on a tiny Qwen3, torch_compile on: sentences of many lengths."""

import random
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, ByT5Tokenizer, Qwen3Config
from trl import DPOConfig, DPOTrainer

torch.manual_seed(0)
random.seed(0)
config = Qwen3Config(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    head_dim=32, vocab_size=384, tie_word_embeddings=True,
)  # fmt: skip


def words(low, high):
    return "".join(random.choice("abcdefgh ") for _ in range(random.randrange(low, high)))


rows = [{"prompt": words(8, 16), "chosen": words(8, 32), "rejected": words(8, 32)} for _ in range(32)]
arguments = DPOConfig(
    output_dir="dpo",
    per_device_train_batch_size=4,
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    torch_compile=True,
    report_to=[],
    use_cpu="--cpu" in sys.argv,
    bf16=False,
    max_length=64,
    disable_tqdm=True,
)
trainer = DPOTrainer(
    AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"),
    args=arguments,
    train_dataset=Dataset.from_list(rows),
    processing_class=ByT5Tokenizer(),
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
