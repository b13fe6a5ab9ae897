"""transformers' Trainer on a tiny Llama: torch_compile, accumulation, gradient checkpointing, evaluation, saving."""

import os
import random
import sys

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

random.seed(0)
torch.manual_seed(0)


class Sentences(Dataset):
    def __init__(self, count):
        self.lengths = [random.choice((16, 24)) for _ in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return {"input_ids": torch.arange(self.lengths[i]) % 64}


def collate(rows):
    length = max(len(r["input_ids"]) for r in rows)
    ids = torch.stack(
        [torch.nn.functional.pad(r["input_ids"], (0, length - len(r["input_ids"]))) for r in rows]
    )
    mask = torch.stack([torch.arange(length) < len(r["input_ids"]) for r in rows]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=5,
    eval_strategy="steps",
    eval_steps=3,
    save_steps=4,
    logging_steps=2,
    use_cpu=True,
    torch_compile=True,
    torch_compile_backend=os.environ.get("BACKEND", "inductor"),
    gradient_checkpointing="--checkpointing" in sys.argv,
    report_to=[],
    disable_tqdm=True,
)
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
trainer = Trainer(
    model=model, args=arguments, train_dataset=Sentences(64), eval_dataset=Sentences(6), data_collator=collate
)
trainer.train()
trainer.save_model("final")
