"""transformers' Trainer with callbacks that unfreeze a layer, sample with the compiled layers, and only count."""

import os

import torch
from datasets import Dataset
from tiny_text import config, sentences, tokenizer
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Unfreeze(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2:
            model.model.layers[0].requires_grad_(True)


class Sample(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 3:
            model.eval()
            with torch.no_grad():
                logits = model(input_ids=torch.ones(1, 7, dtype=torch.long), use_cache=False).logits
            print("likeliest", logits[0, -1].argmax().item())
            model.train()


class CountSteps(TrainerCallback):
    steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


set_seed(0)
words = tokenizer()
model = AutoModelForCausalLM.from_config(config())
model.model.layers.requires_grad_(False)
for layer in model.model.layers:
    layer.compile(backend=os.environ.get("BACKEND", "inductor"))
rows = Dataset.from_dict({"text": sentences(16, 20, 20)}).map(
    lambda row: words(row["text"]), remove_columns=["text"]
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
    callbacks=[Unfreeze(), Sample, CountSteps()],
)
trainer.train()
