"""TRL's DPOTrainer with LoRA on a base model that was saved before: the reference is the model without its adapter."""

import os

import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_text import config, sentences, tokenizer
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

words = tokenizer()
AutoModelForCausalLM.from_config(config()).save_pretrained("base")
words.save_pretrained("base")
rows = Dataset.from_dict(
    {
        "prompt": sentences(20, 3, 10),
        "chosen": sentences(20, 5, 40, seed=1),
        "rejected": sentences(20, 5, 40, seed=2),
    }
)
trainer = DPOTrainer(
    model="base",
    args=DPOConfig(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_length=64,
        torch_compile=True,
        torch_compile_backend=os.environ.get("BACKEND", "inductor"),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        use_cpu=True,
        model_init_kwargs={"dtype": torch.float32},
    ),
    train_dataset=rows.select(range(16)),
    eval_dataset=rows.select(range(16, 20)),
    processing_class=words,
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
trainer.save_model("final")
