"""TRL's SFTTrainer on conversations: torch_compile, loss on the assistant's words, evaluation, a last partial batch."""

import argparse
import os

from datasets import Dataset
from tiny_text import config, sentences, tokenizer
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--packing", action="store_true")
arguments = parser.parse_args()

asked, answered = sentences(46, 3, 20), sentences(46, 5, 60, seed=1)
rows = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": a}], "completion": [{"role": "assistant", "content": b}]}
        for a, b in zip(asked, answered, strict=True)
    ]
)
trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_config(config()),
    args=SFTConfig(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_length=64,
        packing=arguments.packing,
        torch_compile=True,
        torch_compile_backend=os.environ.get("BACKEND", "inductor"),
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        logging_steps=1,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        use_cpu=True,
    ),
    train_dataset=rows.select(range(38)),
    eval_dataset=rows.select(range(38, 46)),
    processing_class=tokenizer(),
)
trainer.train()
trainer.save_model("final")
