"""transformers' Trainer as its examples use it: torch_compile, accumulation, checkpointing, evaluation, saving."""

import argparse
import os

from datasets import Dataset
from tiny_text import config, sentences, tokenizer
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--checkpointing", action="store_true")
arguments = parser.parse_args()

set_seed(0)
words = tokenizer()
model = AutoModelForCausalLM.from_config(config())
rows = Dataset.from_dict({"text": sentences(60)}).map(
    lambda row: words(row["text"], truncation=True, max_length=80), remove_columns=["text"]
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        max_steps=arguments.steps,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=arguments.accumulate,
        gradient_checkpointing=arguments.checkpointing,
        torch_compile=True,
        torch_compile_backend=os.environ.get("BACKEND", "inductor"),
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        logging_steps=1,
        learning_rate=1e-4,
        report_to=[],
        use_cpu=True,
    ),
    train_dataset=rows.select(range(50)),
    eval_dataset=rows.select(range(50, 60)),
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
    processing_class=words,
)
trainer.train()
print(trainer.evaluate())
trainer.save_model("final")
