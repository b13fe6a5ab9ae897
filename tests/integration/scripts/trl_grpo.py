"""TRL's GRPOTrainer: it generates, rewards short answers, and trains on what it generated."""

import os

from datasets import Dataset
from tiny_text import config, sentences, tokenizer
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer


def short(completions, **more):
    return [-float(len(text.split())) for text in completions]


trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_config(config()),
    reward_funcs=short,
    args=GRPOConfig(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=12,
        torch_compile=True,
        torch_compile_backend=os.environ.get("BACKEND", "inductor"),
        save_strategy="no",
        logging_steps=1,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        use_cpu=True,
    ),
    train_dataset=Dataset.from_dict({"prompt": sentences(12, 3, 10)}),
    processing_class=tokenizer(),
)
trainer.train()
trainer.save_model("final")
